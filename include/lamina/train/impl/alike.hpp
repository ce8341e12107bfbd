// What the ranks of a training must agree on: the update, the options, the data, the state.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/base/random.hpp>
#include <lamina/comm/alike.hpp>
#include <lamina/train/trainer.hpp>

#include <array>

namespace lamina::detail {

inline std::string in_words(const Schedule& s) {
  constexpr std::array names{"constant", "step", "multistep", "polynomial", "cosine"};
  using Kind = Schedule::Kind;
  std::string words = s.factor ? "one's own" : names[std::size_t(s.kind)];
  if (s.factor) return text(words, ", ", exact(s.warmup), " epochs of warm-up");
  if (s.kind == Kind::step) append(words, text(" every ", exact(s.every)));
  if (s.kind == Kind::multi_step)
    for (const double m : s.milestones) append(words, ' ' + exact(m));
  if (s.kind == Kind::step || s.kind == Kind::multi_step)
    append(words, text(" by ", exact(s.gamma)));
  if (s.kind == Kind::polynomial) append(words, text(" of power ", exact(s.power)));
  return text(words, ", ", exact(s.warmup), " epochs of warm-up");
}

inline std::string in_words(const Transform& t) {
  std::string s = text(t.shape, t.resize ? text(", resized to ", t.resize) : std::string());
  if (t.augment)
    append(s, text(", augmented", t.mirror ? " by mirroring" : "",
                   t.pad ? text(", shifts of ", t.pad) : std::string(),
                   t.random_resize ? ", random crops" : ""));
  for (std::size_t c = 0; c < t.mean.size(); ++c)
    append(s, text(", ", exact(double(t.mean[c])), " +- ", exact(double(t.deviation[c]))));
  return s;
}

/// An image as it is decoded. One that no rank can read is met when its turn comes.
inline std::string in_words(const Dataset& data, std::int64_t index) {
  Sample sample;
  try {
    data.read(index, sample);
  } catch (const std::exception& e) {
    return text("unreadable (", e.what(), ')');
  }
  std::string bytes;
  const auto add = [&](const auto& v) {
    bytes.append(reinterpret_cast<const char*>(v.data()), v.size() * sizeof v[0]);
  };
  add(sample.pixels), add(sample.planes), add(sample.labels), add(sample.values);
  return format("%lld x %lld x %lld of label %d, digest %016llx",
                static_cast<long long>(sample.channels), static_cast<long long>(sample.height),
                static_cast<long long>(sample.width), int(sample.label),
                static_cast<unsigned long long>(key_of(bytes)));
}

LAMINA_INLINE void check_alike(const Communicator& ranks, const Optimizer& optimizer,
                               const TrainerOptions& o) {
  check_alike(ranks,
              {{"the optimizer", optimizer.text()},
               {"the schedule", in_words(o.schedule)},
               {"the seed", text(o.seed)},
               {"the global batch", text(o.batch)},
               {"the micro-batch", text(o.micro_batch)},
               {"workers", text(o.workers)},
               {"the ranks that train first", text(o.active)},
               {"the ranks that there may be", text(o.most)},
               {"the evaluation batch", text(o.evaluation_batch)},
               {"graph", text(o.graph)},
               {"the loss scale", o.loss_scaling.value_or(LossScaling::usual(o.dtype)).text()},
               {"communicate", text(o.communicate)}});
}

LAMINA_INLINE void check_alike(const Communicator& ranks, const FitOptions& o, const Progress& at) {
  check_alike(ranks, {{"epochs", text(o.epochs)},
                      {"steps", text(o.steps)},
                      {"validation", o.validation ? "given" : ""},
                      {"save", o.save.empty() ? "" : "given"},  // rank 0 writes it
                      {"save_every", text(o.save_every)},
                      {"keep", text(o.keep)},
                      {"keep_best", text(o.keep_best)},
                      {"the step to go on from", text(at.step)},
                      {"the epoch to go on from", text(at.epoch)},
                      {"the batch to go on from", text(at.batch)},
                      {"whether an evaluation is due", text(at.evaluation_due)}});
}

LAMINA_INLINE void check_alike(const Communicator& ranks, const Dataset& data,
                               const LoaderOptions& o) {
  if (ranks.size() == 1) return;
  std::vector<Fact> facts = {{"shuffle", text(o.shuffle)},
                             {"augment", text(o.augment)},
                             {"the number of images", text(data.size())},
                             {"the number of classes", text(data.classes())},
                             {"the target of an image", data.target().text()},
                             {"what is made of images", in_words(data.transform())}};
  constexpr std::int64_t looked_at = 8;
  const std::int64_t n = std::min(data.size(), looked_at);
  for (std::int64_t i = 0; i < n; ++i) {  // the first, the last, and some between
    const std::int64_t index = n > 1 ? i * (data.size() - 1) / (n - 1) : 0;
    facts.push_back({text("image ", index), in_words(data, index)});
  }
  check_alike(ranks, facts);
}

}  // namespace lamina::detail
