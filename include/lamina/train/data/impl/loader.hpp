// Loader: worker threads that fill a ring of batches ahead of the training.
#pragma once

#include <lamina/base/error.hpp>
#include <lamina/base/inline.hpp>
#include <lamina/base/random.hpp>
#include <lamina/base/threads.hpp>
#include <lamina/cost/split.hpp>
#include <lamina/train/data/loader.hpp>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace lamina {
namespace detail::loading {

// Streams of the seed: the orders of the epochs, and the augmentation (epoch + 1, sample).
inline constexpr std::uint64_t order_stream = 0;

struct Slot {
  std::vector<std::uint8_t> bytes;
  std::vector<float> images;  // where they do not come as bytes
  std::vector<char> targets;
  Batch batch;
  std::exception_ptr error;
  std::int64_t ready = -1;  // the ticket of the batch that it holds
};

// What one worker keeps between batches, so that it allocates once.
struct Worker {
  std::vector<std::uint32_t> order;
  std::int64_t epoch = -1;  // of `order`
  Sample sample;
  Transform::Scratch scratch;
};

inline constexpr std::int32_t unset = std::numeric_limits<std::int32_t>::min();

/// What was read before, so that nobody takes it for what a read() that leaves something out was to
/// give. Room stays.
inline void forget(Sample& s) {
  s.height = s.width = s.channels = 0, s.shrunk = 1, s.label = unset;
  s.pixels.clear(), s.planes.clear(), s.labels.clear(), s.values.clear();
}

/// This rank's part of a batch, or of each of its micro-batches.
inline Part rows_of(const LoaderOptions& o) {
  const std::int64_t rows = o.global_batch / o.micro_batches;
  if (o.shares.empty()) return part(rows, o.ranks, o.rank);
  check(int(o.shares.size()) <= o.ranks, "there are shares for ", o.shares.size(),
        " ranks, but only ", o.ranks);
  return o.rank < int(o.shares.size()) ? part(rows, o.shares, o.rank) : Part{rows, 0};
}

}  // namespace detail::loading

// A ticket numbers the batches of all epochs: ticket / batches is the epoch. Ticket t lives in slot
// t % depth; slots from `served` (the batch in the hands of the user) to `claimed` are in use.
struct Loader::Impl {
  Impl(const Dataset& d, const LoaderOptions& o) : data(d), options(o), transform(d.transform()) {
    const auto total = data.size();
    check(o.ranks > 0 && o.rank >= 0 && o.rank < o.ranks, "rank ", o.rank, " of ", o.ranks,
          " does not exist");
    check(o.global_batch > 0, "the global batch must be positive, got ", o.global_batch);
    check(total > 0, data.name(), ": the data set is empty");
    check(total <= std::int64_t{0xFFFFFFFF}, data.name(), ": ", total,
          " images are too many, expected less than 2^32");
    check(o.pad_last || total >= o.global_batch, data.name(), ": a global batch of ",
          o.global_batch, " is larger than the data set of ", total, " images");
    check(o.depth >= 2 && o.threads >= 1, "a loader needs a depth of 2 or more and a thread, got ",
          o.depth, " and ", o.threads);
    transform.augment = transform.augment && o.augment;
    check(!transform.augment || !data.labels_pixels(), data.name(),
          ": images whose pixels have targets cannot be augmented: these stay where they are");
    check(!data.labels_pixels() || transform.resize == 0 ||
              transform.resize == std::min(transform.shape.h, transform.shape.w),
          data.name(), ": Transform::resize ", transform.resize,
          " would cut off what the targets of its pixels are of: expected 0");
    batches = (total + (o.pad_last ? o.global_batch - 1 : 0)) / o.global_batch;
    check(o.micro_batches > 0 && o.global_batch % o.micro_batches == 0, "a global batch of ",
          o.global_batch, " cannot be cut into ", o.micro_batches, " equal micro-batches");
    check(o.micro_batches == 1 || !o.pad_last, "micro-batches are not padded");
    mine = detail::loading::rows_of(o);
    rows = o.micro_batches * mine.size;

    slots.resize(std::size_t(o.depth));
    for (auto& slot : slots) {
      slot.targets.resize(std::size_t(rows) * data.target().bytes());
    }
    threads.reserve(std::size_t(o.threads));
    try {
      for (int i = 0; i < o.threads; ++i)
        threads.emplace_back([this] {
          unbind_thread();
          work();
        });
    } catch (...) {
      join();
      throw;
    }
  }

  ~Impl() { join(); }

  void join() {
    {
      const std::lock_guard lock(mutex);
      stop = true;
      cancel = true;
    }
    room.notify_all();
    for (auto& thread : threads) thread.join();
  }

  detail::loading::Slot& slot_of(std::int64_t ticket) {
    return slots[std::size_t(ticket % options.depth)];
  }

  void work() {
    detail::loading::Worker worker;
    std::unique_lock lock(mutex);
    while (true) {
      room.wait(lock, [&] { return stop || (!cancel && claimed < served + options.depth); });
      if (stop) return;
      const auto ticket = claimed++;
      ++busy;
      lock.unlock();
      detail::loading::Slot& slot = slot_of(ticket);
      slot.error = nullptr;
      try {
        fill(slot, ticket, worker);
      } catch (...) {
        slot.error = std::current_exception();
      }
      lock.lock();
      --busy;
      slot.ready = ticket;
      filled.notify_all();
    }
  }

  void fill(detail::loading::Slot& slot, std::int64_t ticket, detail::loading::Worker& worker) {
    Batch& batch = slot.batch;
    const auto total = data.size();
    batch.epoch = ticket / batches;
    batch.index = ticket % batches;
    batch.rank = options.rank, batch.ranks = options.ranks;
    batch.targets = slot.targets.data();
    batch.size = rows;
    batch.first = batch.index * options.global_batch + mine.begin;
    batch.valid =
        options.micro_batches > 1 ? rows : std::clamp<std::int64_t>(total - batch.first, 0, rows);
    batch.global_valid = std::min(options.global_batch, total - batch.index * options.global_batch);
    if (options.shuffle && worker.epoch != batch.epoch) {
      worker.order.resize(std::size_t(total));
      permute<std::uint32_t>(worker.order, Random(options.seed, detail::loading::order_stream,
                                                  std::uint64_t(batch.epoch)));
      worker.epoch = batch.epoch;
    }

    bool as_bytes = options.bytes;
    for (std::int64_t row = 0; row < batch.valid && !cancel; ++row) {
      const auto at = batch.first +
                      row / mine.size * (options.global_batch / options.micro_batches) +
                      row % mine.size;
      const auto index = options.shuffle ? std::int64_t(worker.order[std::size_t(at)]) : at;
      const Random random(options.seed, std::uint64_t(batch.epoch) + 1, std::uint64_t(index));
      worker.sample.shrink = [&](std::int64_t height, std::int64_t width) {
        return transform.shrink(height, width, random);
      };
      detail::loading::forget(worker.sample);
      data.read(index, worker.sample);
      check(worker.sample.height > 0 || !worker.sample.planes.empty(), data.name(),
            ": read() gave image ", index, " neither pixels, with a height, nor planes");
      check(!data.labels_pixels() || !worker.sample.planes.empty() ||
                (worker.sample.height == transform.shape.h &&
                 worker.sample.width == transform.shape.w),
            data.name(), ": image ", index, " is ", worker.sample.height, 'x', worker.sample.width,
            ", expected ", transform.shape.h, 'x', transform.shape.w, ", as its targets are");
      if (as_bytes && !worker.sample.planes.empty()) as_bytes = false, widen(slot, row);
      if (as_bytes)
        transform.apply(worker.sample, random, row_of(slot.bytes, row), worker.scratch);
      else
        transform.apply(worker.sample, random, row_of(slot.images, row), worker.scratch);
      write_target(worker.sample, slot, row);
    }
    if (as_bytes)
      blacken(slot.bytes, batch.valid);
    else
      blacken(slot.images, batch.valid);
    batch.images = as_bytes ? nullptr : slot.images.data();
    batch.pixels = as_bytes ? Pixels{slot.bytes.data(), &values} : Pixels{};
    // Those of rows without an image: all bits set are -1, and not a number.
    std::fill(slot.targets.begin() + batch.valid * std::int64_t(data.target().bytes()),
              slot.targets.end(), char(-1));
  }

  /// Images of a batch from this row on; there is room for all from the first call on.
  template <class T>
  std::span<T> from_row(std::vector<T>& images, std::int64_t row) const {
    images.resize(std::size_t(rows * transform.shape.sample()));
    return std::span(images).subspan(std::size_t(row * transform.shape.sample()));
  }
  template <class T>
  std::span<T> row_of(std::vector<T>& images, std::int64_t row) const {
    return from_row(images, row).first(std::size_t(transform.shape.sample()));
  }
  template <class T>
  void blacken(std::vector<T>& images, std::int64_t row) const {
    std::ranges::fill(from_row(images, row), T(0));
  }
  /// What `row` rows of bytes stand for.
  void widen(detail::loading::Slot& slot, std::int64_t row) const {
    const Pixels from{slot.bytes.data(), &values};
    const std::span<float> to = from_row(slot.images, 0);
    for (std::size_t i = 0; i < std::size_t(row * transform.shape.sample()); ++i)
      to[i] = from.value(transform.shape, i);
  }

  void write_target(const Sample& sample, detail::loading::Slot& slot, std::int64_t row) const {
    const Form& form = data.target();
    char* to = slot.targets.data() + std::size_t(row) * form.bytes();
    const auto copy = [&](const auto& from) {
      check(std::int64_t(from.size()) == form.shape.size(), data.name(), ": a target has ",
            from.size(), " elements, expected ", form.shape.size());
      std::memcpy(to, from.data(), form.bytes());
    };
    if (form.dtype == DType::f32)
      copy(sample.values);
    else if (!data.labels_samples())
      copy(sample.labels);
    else
      std::memcpy(to, &sample.label, sizeof sample.label);
    check(!data.labels_samples() || sample.label != detail::loading::unset, data.name(),
          ": read() gave an image no label: one below zero says that it has none");
    check(!data.labels_samples() || sample.label < data.classes(), data.name(),
          ": read() gave an image the label ", sample.label, ": expected one below the ",
          data.classes(), " of classes()");
  }

  const Batch& next() {
    std::unique_lock lock(mutex);
    if (!failed) served = wanted++;
    room.notify_all();
    detail::loading::Slot& slot = slot_of(served);
    filled.wait(lock, [&] { return slot.ready == served; });
    failed = slot.error != nullptr;
    if (failed) std::rethrow_exception(slot.error);
    return slot.batch;
  }

  std::pair<std::int64_t, std::int64_t> position() {
    const std::lock_guard lock(mutex);
    const std::int64_t next = failed ? served : wanted;
    return {next / batches, next % batches};
  }

  void seek(std::int64_t epoch, std::int64_t index) {
    check(epoch >= 0 && index >= 0 && index <= batches, data.name(), ": no batch ", index,
          " in epoch ", epoch, ", an epoch has ", batches);
    {
      std::unique_lock lock(mutex);
      cancel = true;
      filled.wait(lock, [&] { return busy == 0; });
      for (auto& slot : slots) slot.ready = -1;
      served = claimed = wanted = epoch * batches + index;
      failed = false;
      cancel = false;
    }
    room.notify_all();
  }

  const Dataset& data;
  const LoaderOptions options;
  Transform transform;
  const Pixels::Values values = transform.values();
  std::int64_t batches = 0, rows = 0;  // rows: of a batch, on this rank
  Part mine;                           // of a micro-batch
  std::vector<detail::loading::Slot> slots;

  std::mutex mutex;  // guards all below, and Slot::ready
  std::condition_variable room, filled;
  std::int64_t served = 0, wanted = 0, claimed = 0;
  int busy = 0;  // workers that fill a slot
  bool failed = false, stop = false;
  std::atomic<bool> cancel = false;  // also read without the mutex: leave the batch unfinished
  std::vector<std::thread> threads;
};

LAMINA_INLINE Loader::Loader(const Dataset& data, const LoaderOptions& options)
    : impl_(std::make_unique<Impl>(data, options)) {}
LAMINA_INLINE Loader::~Loader() = default;
LAMINA_INLINE Loader::Loader(Loader&&) noexcept = default;
LAMINA_INLINE Loader& Loader::operator=(Loader&&) noexcept = default;

LAMINA_INLINE std::int64_t Loader::batches() const { return impl_->batches; }
LAMINA_INLINE std::int64_t Loader::images() const { return impl_->data.size(); }
LAMINA_INLINE const Batch& Loader::next() { return impl_->next(); }
LAMINA_INLINE std::pair<std::int64_t, std::int64_t> Loader::position() const {
  return impl_->position();
}
LAMINA_INLINE void Loader::seek(std::int64_t epoch, std::int64_t index) {
  impl_->seek(epoch, index);
}

}  // namespace lamina
