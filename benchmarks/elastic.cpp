// elastic: what it costs to train on with more or fewer ranks, and whether many such changes leave
// anything behind. Start it with mpirun, or with LAMINA_RANKS for ranks as threads, with as many as
// the largest number in --ranks. benchmarks/resize_costs holds it against stopping and starting.
#include "flags.hpp"
#include "session.hpp"

#include <lamina/base/clock.hpp>
#include <lamina/base/median.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace {

using namespace lamina;

struct ElasticOptions : cli::RunOptions {
  std::vector<int> ranks = {1, 2, 4, 2, 1};
  int resizes = 0, steps = 5;
};

/// What this process holds.
struct Held {
  double mb = 0;  ///< resident
  int files = 0;  ///< open descriptors
};

Held held() {
  Held h;
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmRSS:")) h.mb = std::stod(line.substr(6)) / 1e3;
  for ([[maybe_unused]] const auto& file : std::filesystem::directory_iterator("/proc/self/fd"))
    ++h.files;
  return h;
}

/// A change, and the steps around it.
struct Change {
  Resize resize;
  double between = 0;          ///< seconds from the last step before to the first one after
  double first = 0;            ///< seconds of the first step after
  std::vector<double> before;  ///< seconds of steps
  double during = 0;           ///< mean seconds of a step while others made themselves ready
};

/// On rank 0: some steps with each number of ranks, one after the other.
class Course {
 public:
  explicit Course(const ElasticOptions& o) : o_(o) {}

  int resize() {
    done_ = int(changes_.size()) == o_.resizes && int(calm_.size()) >= o_.steps;
    if (asked_ || done_ || int(calm_.size()) < o_.steps) return 0;
    asked_ = true;
    return to(changes_.size() + 1);
  }

  void step(const StepResult& r) {
    const double end = now();
    check(r.step == last_ + 1, "after step ", last_, " came step ", r.step);
    if (fresh_) {
      changes_.back().between = end - r.seconds - end_;
      changes_.back().first = r.seconds;
    } else {
      (asked_ ? during_ : calm_).push_back(r.seconds);
    }
    fresh_ = false, last_ = r.step, end_ = end;
  }

  void changed(const Resize& r) {
    check(r.step == last_, "resized at step ", r.step, " after step ", last_);
    changes_.push_back({.resize = r, .before = std::move(calm_), .during = mean_during(r)});
    calm_.clear(), during_.clear(), asked_ = false, fresh_ = true;
  }

  bool done() const { return done_; }
  const std::vector<Change>& changes() const { return changes_; }
  /// Of the steps after a change.
  const std::vector<double>& after(std::size_t change) const {
    return change + 1 < changes_.size() ? changes_[change + 1].before : calm_;
  }

 private:
  /// Around the list, whose last number is also the first one.
  int to(std::size_t change) const {
    const std::size_t around = o_.ranks.size() - 1;
    return o_.ranks[(change - 1) % around + 1];
  }

  /// Of the steps that began before all were ready; later ones only agree when to change.
  double mean_during(const Resize& r) const {
    double sum = 0;
    int steps = 0;
    for (; steps < int(during_.size()) && sum < r.prepared; ++steps)
      sum += during_[std::size_t(steps)];
    return steps > 0 ? sum / steps : 0;
  }

  const ElasticOptions& o_;
  std::vector<Change> changes_;
  std::vector<double> calm_, during_;
  std::int64_t last_ = 0;
  double end_ = 0;
  bool asked_ = false, fresh_ = false, done_ = false;
};

void print(const Course& course, double batch) {
  std::puts(
      "ranks    pause_ms  between_ms  first_s  step_s        MB  prepared_s  "
      "before_img/s  while_img/s  after_img/s  while/before");
  for (std::size_t i = 0; i < course.changes().size(); ++i) {
    const Change& c = course.changes()[i];
    const double before = median(c.before), after = median(course.after(i));
    // Who leaves need not get ready: the steps until the change are as those before.
    const bool joins = c.resize.to > c.resize.from && c.during > 0;
    std::printf("%d -> %d  %9.2f  %10.2f  %7.3f  %6.3f  %8.1f  %10.2f  %12.2f  ", c.resize.from,
                c.resize.to, 1e3 * c.resize.pause, 1e3 * c.between, c.first, after,
                c.resize.bytes / 1e6, c.resize.prepared, batch / before);
    if (joins)
      std::printf("%11.2f  %11.2f  %12.2f\n", batch / c.during, batch / after, before / c.during);
    else
      std::printf("%11s  %11.2f  %12s\n", "-", batch / after, "-");
  }
  std::printf("steps: consecutive, none lost or run twice\n");
}

/// What each process held after a tenth of the changes that it saw, and after all.
void print_held(const std::vector<Held>& seen, const World& world) {
  const Held early = seen.empty() ? Held() : seen[std::max<std::size_t>(seen.size() / 10, 1) - 1];
  const Held late = seen.empty() ? Held() : seen.back();
  const auto all = world.comm().all_gather_value(
      std::array{double(seen.size()), early.mb, late.mb, double(early.files), double(late.files)});
  if (world.rank() != 0) return;
  std::puts("rank  resizes  MB_after_a_tenth  MB_after_all  growth_MB  files_then  files_now");
  for (std::size_t r = 0; r < all.size(); ++r) {
    const auto& [resizes, then, now, files_then, files_now] = all[r];
    std::printf("%4zu  %7.0f  %16.1f  %12.1f  %9.1f  %10.0f  %9.0f\n", r, resizes, then, now,
                now - then, files_then, files_now);
  }
}

void settle(ElasticOptions& o, const World& world) {
  check(o.ranks.size() > 1 && o.ranks.front() == o.ranks.back(),
        "--ranks: expected numbers of which the last is the first");
  check(*std::ranges::min_element(o.ranks) > 0 &&
            std::ranges::adjacent_find(o.ranks) == o.ranks.end(),
        "--ranks: expected numbers from 1, none of them twice in a row");
  const int most = *std::ranges::max_element(o.ranks);
  check(most <= world.size(), "--ranks: ", most, " are more than the ", world.size(), " started");
  const bool by_samples = o.plan == "data" && o.split.empty() && !o.shard_optimizer;
  if (o.workers == 0 && o.micro_batch == 0 && by_samples) o.workers = most;
  if (o.resizes == 0) o.resizes = int(o.ranks.size()) - 1;
}

int bench(ElasticOptions o, World& world) {
  const bool first = world.rank() == 0;
  if (cli::lists_models(o, world)) return 0;
  settle(o, world);
  cli::prepare(o, world);
  const auto data = cli::open(o, {});
  const Network net = cli::make_network(o, *data);
  const std::int64_t batch = o.batch(world.size(), 16);
  const cli::RunPlan plan = cli::make_plan(o, net, batch, world, o.ranks[0]);
  TrainerOptions how = cli::trainer_options(o, batch, plan);
  how.splits_for = [&](int ranks) {
    return splits_of(cli::make_plan(o, net, batch, world, ranks, plan.measured).decisions);
  };
  how.active = o.ranks[0];
  Trainer trainer(net, world, cli::make_optimizer(o), how);
  Course course(o);
  std::vector<Held> seen;
  FitOptions fit{.steps = 1'000'000'000};
  fit.resize = [&] { return course.resize(); };
  fit.stop = [&] { return first && course.done(); };
  fit.on_step = [&](const StepResult& r) {
    if (first) course.step(r);
  };
  fit.on_resize = [&](const Resize& r) {
    if (first) course.changed(r);
    seen.push_back(held());
  };
  fit.on_refused = [](const std::string& why) { throw Error(why); };
  for ([[maybe_unused]] const Epoch& epoch : trainer.fit(*data, fit)) {
  }
  if (first) {
    std::printf("# elastic: %s, global batch %lld, %d workers, %d ranks over %s, %d resizes\n",
                o.model.c_str(), static_cast<long long>(batch), o.workers, world.size(),
                world.comm().carrier().c_str(), o.resizes);
    if (o.resizes < int(2 * o.ranks.size())) print(course, double(batch));
  }
  print_held(seen, world);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("What it costs to train on with more or fewer ranks", "elastic");
  ElasticOptions o;
  cli::add_model_flags(app, o);
  cli::add_run_flags(app, o);
  app.add_option("--ranks", o.ranks, "how many train, one after the other; the last is the first")
      ->delimiter(',')
      ->capture_default_str();
  cli::count(app, "--resizes", o.resizes, 0, "so many, around the list; 0 = once around");
  cli::count(app, "--steps", o.steps, 1, "steps with each number of ranks")->capture_default_str();
  cli::add_optimizer_flags(app, o);
  // Ranks may be threads here, so the flags are read before there are any.
  if (const auto status = cli::parse(app, argc, argv)) return *status;
  return lamina::run(argc, argv, [&](World& world) { return bench(o, world); });
}
