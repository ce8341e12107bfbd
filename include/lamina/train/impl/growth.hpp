// Ranks that are started in the middle of a training.
//
// Rank 0 announces it to those that train as it announces a resize, and by a note to the others.
// Then each starts them together with the others on a thread of its own, over a World that has a
// communication thread of its own: nothing of it meets a step's collectives. There all ranks
// compare what they were started with. Whoever came is then parked, and each of the others goes on
// with the larger World at its next step; only then rank 0 asks those that came to get ready.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/base/threads.hpp>
#include <lamina/kernels/backends.hpp>
#include <lamina/network/agree.hpp>
#include <lamina/network/detail/compare_ranks.hpp>
#include <lamina/train/trainer.hpp>

#include <chrono>

namespace lamina {

// ---- what both sides say; in the same order -----------------------------------------------------

LAMINA_INLINE void Trainer::compare(const Communicator& all, bool some_are_late) const {
  if (some_are_late) {
    check_alike(all, {{"the back end", backend_name(options_.backend, options_.dtype)}});
    follow_instruction_set(all, options_.backend, options_.dtype, options_.late);
  }
  PlaceOptions compared = placing_of(options_);
  compared.backend = make_backend(options_.backend, options_.dtype);
  compared.fuse = options_.fuse;
  compared.ranks = all, compared.splits = options_.splits;
  detail::compare_ranks(network_, compared);
}

LAMINA_INLINE Trainer::Meeting Trainer::meet(const Communicator& larger) const {
  detail::check_alike(larger, optimizer_, options_);
  compare(larger, true);
  return {larger, teams_of(larger)};
}

LAMINA_INLINE void Trainer::Fit::compare(const Communicator& all) const {
  detail::check_alike(all, options_, Progress());
  detail::check_alike(all, data_,
                      LoaderOptions{.shuffle = options_.shuffle, .augment = options_.augment});
}

// ---- those that come ----------------------------------------------------------------------------

/// From here on the others count on this rank.
LAMINA_INLINE void Trainer::Fit::join() {
  compare(trainer_.all_);
  trainer_.all_.barrier();
  if (options_.world) options_.world->accept();
  trainer_.options_.late = false;
}

// ---- those that were there ----------------------------------------------------------------------

LAMINA_INLINE void Trainer::adopt(Meeting meeting) {
  all_ = std::move(meeting.all), teams_ = std::move(meeting.teams);
}

/// Starts so many that there are `ranks`.
LAMINA_INLINE void Trainer::Fit::grow(int ranks) {
  growth_ = std::async(std::launch::async, [this, more = ranks - trainer_.all_.size()] {
    unbind_thread();
    World larger = options_.world->grow(more);
    Meeting meeting = trainer_.meet(larger);
    compare(larger);
    larger.comm().barrier();
    larger.accept(), options_.world->hear(larger);
    return Grown{std::move(larger), std::move(meeting)};
  });
}

/// Whether it is known what came of it: on rank 0 not before it is on the others, up to a message.
LAMINA_INLINE bool Trainer::Fit::grown() const {
  return growth_.valid() && growth_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

/// Waits for those that are being started, if any, and goes on with them; or says why not.
LAMINA_INLINE std::string Trainer::Fit::settle_growth() noexcept {
  if (!growth_.valid()) return {};
  try {
    Grown grown = growth_.get();
    if (rehearsal_.valid()) rehearsal_.wait();  // called off, and may look at all ranks still
    options_.world->become(std::move(grown.world));
    trainer_.adopt(std::move(grown.meeting));
    told_of_stop_ = false;  // rank 0 hears no more of what was posted in the smaller World
    return {};
  } catch (const std::exception& e) {  // a rank that was here before is noticed by all
    return e.what();
  }
}

/// Where the training is over: who asked for more hears why there are none, if they failed to come.
LAMINA_INLINE void Trainer::Fit::end_growth() {
  const std::string why = settle_growth();
  if (leads() && !why.empty()) refuse(why);
}

/// Rank 0 announces no more ranks than there are but when it wants others to be started.
LAMINA_INLINE void Trainer::Fit::hear_announcement(int ranks) {
  settle_growth();
  if (ranks > trainer_.all_.size()) return grow(ranks);
  coming_ = {.ranks = ranks, .at = at().step + 1};
}

}  // namespace lamina
