// A training, epoch by epoch.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/train/trainer.hpp>

#include <cmath>
#include <utility>

namespace lamina {

namespace detail {

/// How many images the best is judged by. Evaluation::samples is known after an evaluation only,
/// and what cannot be compared is to be refused before the first step.
inline std::string images_to_judge_by(const FitOptions& o, const Dataset& data) {
  return text((o.validation ? *o.validation : data).size());
}

/// Steps in all when training ends. Those of epochs are counted from where it stands, since the
/// epochs before may have been on other data, and had another number of batches.
inline std::int64_t last_step(const FitOptions& o, const Progress& at, std::int64_t batches) {
  if (o.epochs == 0 && o.steps > 0) return o.steps;
  const std::int64_t epochs = std::max<std::int64_t>(o.epochs, 1);
  const std::int64_t in_epochs = at.step + (epochs - at.epoch) * batches - at.batch;
  return o.steps > 0 ? std::min(o.steps, in_epochs) : in_epochs;
}

}  // namespace detail

LAMINA_INLINE Trainer::Fit::Fit(Trainer& trainer, std::unique_ptr<Dataset> owned,
                                const Dataset& data, FitOptions options)
    : trainer_(trainer),
      owned_(std::move(owned)),
      options_(std::move(options)),
      data_(data),
      batches_(data.size() / trainer.options_.batch) {
  check(batches_ > 0, data.name(), ": a global batch of ", trainer.options_.batch,
        " is larger than the data set of ", data.size(), " images");
  check(trainer.most_ == trainer.all_.size() || options_.world,
        "TrainerOptions::most: expected FitOptions::world, which starts them");
  if (!late()) trainer.recover();
  check(trainer.most_ == trainer.all_.size() || !trainer.snapshots_,
        "lamina launch starts more ranks itself: expected none that come later");
  if (options_.validation)
    check(options_.validation->size() > 0, options_.validation->name(), ": has no images");
  if (late()) join();
  total_ = detail::last_step(options_, at(), batches_);
  if (!trainer.active()) return;
  loader_ = trainer.loader(data, true, options_);
  detail::check_alike(trainer.ranks_, options_, trainer.progress_);
  if (options_.validation) trainer.loader(*options_.validation, false, options_);  // fail now
  prepare_saving();
}

LAMINA_INLINE bool Trainer::Fit::next() {
  while (trainer_.active() || park()) {
    // Who has joined, or resumed meanwhile, stands elsewhere than when this was made.
    total_ = detail::last_step(options_, at(), batches_);
    stopped_ = stopped_ || (more() && alone() && asked());
    const bool another = more() && !stopped_;
    if (another) {
      epoch_ = {};
      if (!awaited()) train();
      if (!trainer_.active()) continue;
      sum_up();
      if (!stopped_) evaluate();
    }
    if (stopped_) trainer_.request_stop(false);  // it is done: another fit() trains on
    if (!another) end_growth(), let_go();
    return another;
  }
  return false;
}

LAMINA_INLINE void Trainer::Fit::train() {
  std::int64_t images = 0;
  // Who iterates may have resumed from a checkpoint.
  if (const std::pair to(at().epoch, at().batch); loader_->position() != to)
    loader_->seek(to.first, to.second);
  for (bool last = false; !last;) {
    if (coming_.at == at().step) change_ranks(trainer_.ranks_.size());
    if (!trainer_.active()) return;
    trainer_.request_stop(asked());
    lead();
    follow();
    get_ready();
    if (trainer_.before_) note_restart();
    trainer_.start(*loader_, total_);
    at().evaluation_due = at().batch == 0 || at().step == total_;
    const bool due = options_.save_every > 0 && at().step % options_.save_every == 0;
    const bool changes = coming_.at == at().step, snapshot = trainer_.snapshot_due();
    const bool waits = at().evaluation_due || due || changes || snapshot;
    finish(waits || !trainer_.ahead() ? 0 : 1);
    stopped_ = stopped_ || (alone() && asked());
    last = at().evaluation_due || stopped_;
    if (last) finish(0);
    images += trainer_.options_.batch;
    if (!options_.save.empty() && (due || last)) save();
    if (snapshot) trainer_.snapshot();
  }
  epoch_.images_per_second = double(images) / epoch_.seconds;
}

LAMINA_INLINE void Trainer::Fit::note_restart() {
  const Snapshots::Before& of = *trainer_.before_;
  const Resize r{.step = at().step,
                 .from = of.ranks,
                 .to = trainer_.ranks_.size(),
                 .pause = of.seconds + now() - trainer_.before_at_,
                 .bytes = of.bytes,
                 .why = of.why,
                 .restart = true};
  trainer_.before_.reset();
  if (options_.on_resize) options_.on_resize(r);
}

LAMINA_INLINE void Trainer::Fit::finish(int left) {
  while (trainer_.under_way() > left) {
    const StepResult r = trainer_.finish();
    epoch_.seconds += r.seconds, epoch_.loss_scale = r.loss_scale;
    stopped_ = stopped_ || r.stop;
    look_after_balance();
    if (r.resize > 0) hear_announcement(r.resize);
    if (options_.on_step) options_.on_step(r);
  }
}

LAMINA_INLINE void Trainer::Fit::sum_up() {
  // An epoch that a run before this one has trained may have been on other data.
  const std::int64_t images = at().images > 0 ? at().images : data_.size();
  const auto steps = double(at().batch > 0 ? at().batch : images / trainer_.options_.batch);
  epoch_.number = at().epoch + (at().batch > 0);
  epoch_.loss = at().loss / steps, epoch_.top1 = at().top1 / steps;
}

LAMINA_INLINE void Trainer::Fit::evaluate() {
  if (trainer_.before_) note_restart();  // all else was done before
  if (options_.validation) {
    const auto stop = [this] {
      if (leads()) hear();  // a parked rank may be asked
      return asked();
    };
    epoch_.validation =
        trainer_.evaluate_unless(*options_.validation, stop, options_.loader_threads);
    stopped_ = !epoch_.validation;
    if (stopped_) return;
  }
  if (options_.keep_best) save_best();
  at().evaluation_due = false;
}

LAMINA_INLINE bool Trainer::Fit::asked() const {
  return trainer_.stop_ || (options_.stop && options_.stop());
}

LAMINA_INLINE void Trainer::Fit::prepare_saving() {
  check(options_.keep >= 0, "keep must not be negative, got ", options_.keep);
  check(!options_.save.empty() || (options_.keep == 0 && !options_.keep_best),
        "keep and keep_best need a file to save to");
  at().settings.erase(scored_images);  // of the best, if this run goes on from that
  if (options_.save.empty()) return;
  try_checkpoint(options_.save, trainer_.network(), trainer_.ranks_);
  if (!options_.keep_best) return;
  Progress mine = at();
  mine.settings[scored_images] = detail::images_to_judge_by(options_, data_);
  best_ = read_score(best_checkpoint(options_.save), options_.validation != nullptr, mine,
                     trainer_.ranks_);
}

LAMINA_INLINE void Trainer::Fit::save() {
  if (options_.keep > 0) keep_checkpoint(options_.save, trainer_.ranks_);
  trainer_.save(options_.save);
  if (options_.keep > 0) drop_checkpoints(options_.save, options_.keep, trainer_.ranks_);
}

LAMINA_INLINE void Trainer::Fit::save_best() {
  // A mean over a part of an epoch, or over other data, does not compare with that over an epoch.
  const bool other_data = at().images > 0 && at().images != data_.size();
  if (!epoch_.validation && (at().batch > 0 || other_data)) return;
  const Score score = epoch_.validation
                          ? Score{true, epoch_.validation->loss, epoch_.validation->top1}
                          : Score{false, epoch_.loss, epoch_.top1};
  const bool better = std::isfinite(score.loss) && (!best_ || score.better_than(*best_));
  // Of unlike back ends each may have rounded it otherwise: to save is for all of them, or none.
  if (!trainer_.ranks_.all_gather_value(int(better))[0]) return;
  at().settings[scored_images] = detail::images_to_judge_by(options_, data_);
  trainer_.save(best_checkpoint(options_.save), score);
  at().settings.erase(scored_images);  // the last checkpoint is not judged
  best_ = score;
}

LAMINA_INLINE Trainer::Fit Trainer::fit(const Dataset& data, FitOptions options) {
  return Fit(*this, nullptr, data, std::move(options));
}

LAMINA_INLINE Trainer::Fit Trainer::fit(std::unique_ptr<Dataset> data, FitOptions options) {
  const Dataset& d = *data;
  return Fit(*this, std::move(data), d, std::move(options));
}

}  // namespace lamina
