// `lamina train`: trains a model by name on data by name, and says what every layer cost.
#include "comm/board.hpp"
#include "commands.hpp"
#include "elastic.hpp"
#include "flags.hpp"
#include "progress.hpp"
#include "session.hpp"
#include "signals.hpp"
#include "terminal.hpp"

#include <lamina/base/naming.hpp>
#include <lamina/base/signal_thread.hpp>
#include <lamina/comm/alike.hpp>
#include <lamina/profile/profile.hpp>
#include <lamina/train/json_log.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lamina::cli {

namespace {

struct TrainOptions : RunOptions {
  std::int64_t epochs = 0, steps = 0, limit = 0, save_every = 0;
  int profile_steps = 10;
  int keep = 0;
  bool no_augment = false, no_shuffle = false, no_validation = false, not_strict = false;
  bool keep_best = false;
  std::string save, resume, init, log;
  bool resumes = false;
  ElasticOptions elastic;
};

/// Of a list "sgd, rate 0.1" what another one does not have; "nothing" where it has all.
std::string parts_without(const std::string& list, const std::string& other) {
  constexpr std::string_view comma = ", ";
  std::string s;
  for (std::size_t at = 0, end = 0; at < list.size(); at = end + comma.size()) {
    end = std::min(list.find(comma, at), list.size());
    const std::string part = text(comma, list.substr(at, end - at));
    if (text(comma, other, comma).find(part + std::string(comma)) == std::string::npos)
      append(s, part);
  }
  return s.empty() ? "nothing" : s.substr(comma.size());
}

/// What may be otherwise in a run that resumes.
std::map<std::string, std::string> options_of(const TrainOptions& o, const Trainer& trainer,
                                              const Dataset& data) {
  std::map<std::string, std::string> all = trainer.own_options();
  const Shape& image = data.shape();
  all["data"] = text(o.data.substr(0, o.data.find(':')), ", ", data.size(), " images, ", image.c,
                     'x', image.h, 'x', image.w, ", ", o.no_shuffle ? "in order" : "shuffled", ", ",
                     o.no_augment ? "as they are" : "augmented");
  all["loss"] = text("label smoothing ", o.label_smoothing);
  return all;
}

/// Lines that say which of the run's options are otherwise than in the checkpoint that it resumes.
std::string other_options(const std::map<std::string, std::string>& own, const Trainer& trainer) {
  std::string lines;
  for (const auto& [name, mine] : own) {
    const auto saved = trainer.progress().options.find(name);
    if (saved == trainer.progress().options.end() || saved->second == mine) continue;
    const std::string other = parts_without(mine, saved->second);
    const std::string others = parts_without(saved->second, mine);
    const bool in_order = other == others;  // in which groups of parameters were given, say
    append(lines, remark(text(name, ": ", in_order ? mine : other, ", where the checkpoint has ",
                              in_order ? saved->second : others)));
  }
  if (trainer.progress().options.empty() && trainer.progress().rate != trainer.optimizer().rate())
    append(lines, remark(text("learning rate ", trainer.optimizer().rate(),
                              ", where the checkpoint has ", trainer.progress().rate)));
  return lines;
}

/// Records some steps in the middle of a training: the first few are left out, and no step that
/// comes after something else: an evaluation, or a checkpoint. Until it has them, steps do not
/// overlap.
class StepRecorder {
 public:
  StepRecorder(Trainer& trainer, int steps, RunTrace* trace)
      : trainer_(trainer), trace_(trace), steps_(steps) {
    restart();
  }
  /// Where ranks have changed: a profile is of steps that were alike.
  void restart() {
    if (profiler_) profiler_->stop();
    profiler_.emplace();
    left_ = steps_, seen_ = 0, open_ = false;
    trainer_.run_ahead(left_ == 0);
  }

  /// `follows`: the next step begins at once.
  void after(bool follows) {
    if (open_) {
      profiler_->end_step(), --left_;
      if (trace_) trace_->step(*profiler_);
    }
    open_ = left_ > 0 && ++seen_ >= 3 && follows;
    open_ ? profiler_->start(trainer_.stream()) : profiler_->stop();
    trainer_.run_ahead(left_ == 0);
  }
  const Profiler& profiler() const { return *profiler_; }

 private:
  Trainer& trainer_;
  RunTrace* trace_;
  std::optional<Profiler> profiler_;
  int steps_, left_ = 0, seen_ = 0;
  bool open_ = false;
};

/// What is said before anything is opened.
void check_flags(const TrainOptions& o) {
  check(!o.resumes || !o.resume.empty() || !o.save.empty(),
        "--resume needs a FILE, or --save FILE to resume from");
  check(o.save_every == 0 || !o.save.empty(), "--save-every needs --save FILE");
  check(o.keep == 0 || !o.save.empty(), "--keep needs --save FILE");
  check(!o.keep_best || !o.save.empty(), "--keep-best needs --save FILE");
  check(!o.not_strict || !o.init.empty(), "--init-partly needs --init FILE");
  check(o.init.empty() || !o.resumes,
        "--init and --resume: a checkpoint has all parameters: expected one of the two");
  check_recorded(o, o.profile_steps);
  const ElasticOptions& e = o.elastic;
  check(e.on || (e.ranks == 0 && e.max_ranks == 0 && e.events.empty() && e.job.empty()),
        "--ranks, --max-ranks, --events and --job need --elastic");
}

/// What is not for ranks that are started later.
void settle_most(TrainOptions& o, int started) {
  int& most = o.elastic.max_ranks;
  if (most == 0) most = started;
  check(most >= started, "--max-ranks ", most, ": ", started, " were started");
  if (most == started) return;
  check(o.plan != "auto", "--max-ranks: --plan auto times plans on ranks that are there");
  check(o.device != "cuda" && !o.backend.starts_with("cuda"), "--max-ranks: it is not for GPUs");
  check(lamina::detail::launched(),
        "--max-ranks: ranks are started by way of mpirun: expected mpirun -n ", started);
}

/// Ranks that are left after others were lost are not those that a proportion was meant for.
void settle_balance(TrainOptions& o, int ranks, const World& world) {
  const auto named = 1 + std::ranges::count(o.balance, ':');
  if (named < 2 || named <= ranks || !lamina::detail::launcher_memory()) return;
  const std::string said = text("--balance ", o.balance, ": ", named, " ranks were to train, not ",
                                ranks, ": workers are shared out evenly");
  if (world.rank() == 0) std::fputs(remark(said).c_str(), stdout);
  o.balance = "even";
}

/// By default there is a worker for each rank that may come.
void settle_elastic(TrainOptions& o, const World& world) {
  if (!o.elastic.on) return settle_balance(o, world.size(), world);
  check(o.trace.empty(),
        "--elastic: there is no --trace of ranks that come and go: expected "
        "--report, which has the last step");
  const int started = world.started();
  if (o.elastic.ranks == 0) o.elastic.ranks = started;
  if (lamina::detail::launcher_memory())  // of those that were asked for some are lost
    o.elastic.ranks = std::min(o.elastic.ranks, started);
  check(o.elastic.ranks <= started, "--ranks ", o.elastic.ranks, ": only ", started,
        started == 1 ? " rank was started" : " ranks were started");
  settle_balance(o, o.elastic.ranks, world);
  settle_most(o, started);
  check(!o.fits_memory, "--elastic: expected a number of samples for --micro-batch");
  const bool by_samples = o.plan == "data" && o.split.empty() && !o.shard_optimizer;
  if (o.workers == 0 && o.micro_batch == 0 && by_samples) {
    check(
        !lamina::detail::launcher_memory(),
        "--elastic under lamina launch: expected --workers N, which stays the same when ranks are "
        "lost");
    o.workers = o.elastic.max_ranks;
  }
  check(built_in(o.plan) || o.plan == "auto", "--elastic --plan ", o.plan,
        ": expected a plan for any number of ranks: auto, ", in_words(plan_names()));
}

/// Those of the plan for another number of ranks. Throws Error where it needs more than splits.
std::vector<Split> splits_on(int ranks, const TrainOptions& o, const Network& net,
                             std::int64_t batch, const World& world, const RunPlan& first) {
  const RunPlan plan = make_plan(o, net, batch, world, ranks, first.measured);
  check(plan.micro_batch == first.micro_batch &&
            plan.plan.shard_optimizer == first.plan.shard_optimizer &&
            recompute_of(plan.decisions) == recompute_of(first.decisions),
        "--plan ", o.plan, ": to fit into memory it would have other micro-batches, recomputation ",
        "or optimizer than before");
  return splits_of(plan.decisions);
}

/// on_first(), without those that came when the others were done with it.
template <class Work>
void on_first_of_started(const World& world, const Work& work) {
  if (!world.late()) on_first(world.comm(), work);
}

/// The log, open on rank 0 and nobody else's; null on the others, and where there is none.
std::unique_ptr<JsonLog> open_log(const TrainOptions& o, const World& world) {
  std::unique_ptr<JsonLog> log;
  on_first_of_started(world, [&] {
    if (!o.log.empty())
      naming(
          "--log", [&] { log = std::make_unique<JsonLog>(o.log); }, " ");
    return std::string();
  });
  return log;
}

void log_step(JsonLog& log, const StepResult& r) {
  std::vector<JsonField> fields{{"step", r.step},
                                {"epoch", r.epoch},
                                {"loss", r.loss},
                                {"lr", r.rate},
                                {"images_per_sec", r.images_per_second}};
  if (r.loss_scale) {
    fields.emplace_back("loss_scale", r.loss_scale->scale);
    fields.emplace_back("skipped", std::int64_t(r.loss_scale->skipped));
  }
  log.write(fields);
}

void log_resize(JsonLog& log, const Resize& r) {
  std::vector<JsonField> fields{{"step", r.step},
                                {"ranks_before", r.from},
                                {"ranks", r.to},
                                {"why", r.why},
                                {"pause_ms", 1e3 * r.pause},
                                {"bytes", r.bytes},
                                {"prepared_s", r.prepared}};
  if (r.restart) fields.emplace_back("restart", true);
  if (!r.workers.empty()) fields.emplace_back("workers", r.workers);
  if (r.imbalance > 0) {
    fields.emplace_back("imbalance", r.imbalance);
    fields.emplace_back("expected_imbalance", r.expected);
  }
  log.write(fields);
}

void log_evaluation(JsonLog& log, const Epoch& epoch, std::int64_t step) {
  log.write({{"step", step},
             {"epoch", epoch.number - 1},
             {"validation_loss", epoch.validation->loss},
             {"top1", epoch.validation->top1},
             {"top5", epoch.validation->top5},
             {"samples", epoch.validation->samples}});
}

/// Those that were written: without recorded steps there are no profiles.
void show_files(const TrainOptions& o, bool recorded, const World& world) {
  std::string best = o.keep_best ? best_checkpoint(o.save) : "";
  if (!std::filesystem::exists(best)) best.clear();  // no epoch was whole; another run's is refused
  const auto of_steps = [&](const std::string& file) { return recorded ? file : ""; };
  std::string trace = o.trace.empty() ? "" : trace_path(o.trace, 0, world.size());
  if (trace != o.trace) append(trace, ", and one of each other rank");
  for (const auto& [what, file] :
       {std::pair("checkpoint", o.save),
        {"best checkpoint", best},
        {"log", o.log},
        {"profile", of_steps(o.json)},
        {"profile", of_steps(o.csv)},
        {"trace", of_steps(trace)},
        {"report", of_steps(o.report.empty() ? "" : o.report + "/index.html")}})
    if (!file.empty()) std::printf("%s: %s\n", what, file.c_str());
}

/// The table and the files of what was recorded.
void show_recorded(const StepRecorder& recorder, const TrainOptions& o, const RunPlan& plan,
                   bool stopped, const Trainer& trainer, RanksOverTime over_time,
                   const World& world) {
  if (recorder.profiler().steps() > 0) {
    RunOptions how = o;
    if (stopped && how.ceilings == "auto") how.ceilings = "cached";  // there is no time to measure
    // What others could do was not measured with those alone that train now.
    if (trainer.ranks().size() < world.size()) how.ceilings = "none";
    Profile profile = make_profile(trainer.network(), recorder.profiler(),
                                   trainer.optimizer().rule(), trainer.ranks());
    over_time.steps = trainer.progress().step;
    if (!over_time.changes.empty()) profile.over_time = std::move(over_time);
    const bool as_planned = trainer.ranks().size() == plan.plan.ranks;
    show_profile(std::move(profile), how, as_planned ? plan : RunPlan(), trainer.network(), world);
  } else if (o.profile_steps > 0 && world.rank() == 0) {
    const bool files = !o.json.empty() || !o.csv.empty() || !o.report.empty();
    const std::string said =
        remark(text("no per-layer table", files ? ", and no file of it" : "", ": ",
                    o.save_every == 1 ? "a checkpoint came before each step"
                                      : "too few steps were run to record any"));
    std::fputs(said.c_str(), stdout);
  }
}

int train(TrainOptions& o, World& world) {
  const SignalThread apart;
  if (lists_models(o, world)) return 0;
  check_flags(o);
  check(o.comm != "none" || o.save.empty() || world.size() == 1,
        "--comm none trains each rank by itself, for timing only: expected no --save");
  settle_elastic(o, world);
  check(o.balance == "even" || o.workers > 0, "--balance shares out workers: expected --workers");
  check(!o.global_norm || o.workers < 2,
        "--global-norm: workers (of --workers, or of --elastic by itself) have batch norm "
        "statistics of their own: expected one of the two");
  prepare(o, world, {{"--save", o.save}, {"--log", o.log, false}});
  const auto log = open_log(o, world);
  const auto data = open(o, {.train = true, .augment = !o.no_augment, .limit = o.limit});
  const auto validation = o.no_validation ? nullptr : open(o, {.train = false, .limit = o.limit});
  const Network net = make_network(o, *data);
  const std::int64_t batch = o.batch(world.started(), 32);
  const int ranks = o.elastic.on ? o.elastic.ranks : world.size();
  const RunPlan plan = make_plan(o, net, batch, world, ranks);
  TrainerOptions how = trainer_options(o, batch, plan);
  how.splits_for = [&](int n) { return splits_on(n, o, net, batch, world, plan); };
  how.active = o.elastic.ranks, how.late = world.late();
  if (o.elastic.max_ranks > world.started()) how.most = o.elastic.max_ranks;
  const auto ranges = cli::ranges(o);
  Trainer trainer(net, world, make_optimizer(o), how);
  trainer.stream().listen_with(ranges.get());
  write_plan_out(o, plan, world);
  trainer.progress().settings["model"] = o.model;
  const bool active = trainer.active();
  Unmatched unmatched;
  if (!o.init.empty() && active)
    unmatched = load_parameters(o.init, trainer.network(), !o.not_strict, trainer.ranks());
  std::vector<std::string> averaged;
  if (o.resumes && active) averaged = trainer.resume(o.resume.empty() ? o.save : o.resume);

  if (!o.save.empty() && active)
    naming(
        "--save", [&] { try_checkpoint(o.save, trainer.network(), trainer.ranks()); }, " ");

  const bool first = world.rank() == 0;
  const auto trace = o.elastic.on ? nullptr : open_trace(o, world, trainer.network());
  StepRecorder recorder(trainer, o.profile_steps, trace.get());
  std::optional<ProgressBar> progress;
  FitOptions fit{.epochs = o.epochs,
                 .steps = o.steps,
                 .validation = validation.get(),
                 .shuffle = !o.no_shuffle,
                 .augment = !o.no_augment,
                 .loader_threads = o.loader_threads,
                 .save = o.save,
                 .save_every = o.save_every,
                 .keep = o.keep,
                 .keep_best = o.keep_best};
  bool graph_known = false;
  const Trainer::Fit* running = nullptr;
  std::string unlogged;  // why the log could not be written: training ends then, and is saved
  const auto with_log = [&](const auto& write) {
    if (!log || !unlogged.empty()) return;
    try {
      write(*log);
    } catch (const Error& e) {
      if (o.comm == "none" && world.size() > 1) throw;  // ranks cannot agree on an end
      unlogged = e.what();
      progress->say(remark(text(unlogged, ": training ends")));
    }
  };
  fit.on_step = [&](const StepResult& r) {
    const bool saves = o.save_every > 0 && r.step % o.save_every == 0;
    recorder.after(r.index < r.count && r.step < running->total_steps() && !saves &&
                   !trainer.snapshot_due());
    if (const std::string graph = graph_known ? "" : trainer.graph(); !graph.empty())
      progress->say(remark(graph)), graph_known = true;
    progress->step(r, trainer.options().batch);
    with_log([&](JsonLog& to) { log_step(to, r); });
  };
  std::unique_ptr<ResizeRequests> requests;
  RanksOverTime over_time;
  on_first_of_started(world, [&] {
    if (o.elastic.on) requests = std::make_unique<ResizeRequests>(o.elastic, trainer);
    return std::string();
  });
  fit.world = &world;
  fit.resize = [&] { return requests ? requests->take() : 0; };
  fit.on_resize = [&](Resize r) {
    if (!r.restart) {
      r.why = r.from == r.to ? "--balance" : requests ? requests->why() : "";
      if (requests && r.from != r.to) requests->done();
      recorder.restart();
    }
    if (!r.restart || r.from != r.to)
      over_time.changes.push_back(
          {r.step, r.from, r.to, r.why, r.pause, r.prepared, r.bytes, r.workers});
    progress->say(remark(r.text()));
    with_log([&](JsonLog& to) { log_resize(to, r); });
  };
  fit.on_refused = [&](const std::string& why) {
    requests->done();
    progress->say(remark(text("no resize: ", why)));
  };
  std::optional<StopSignals> signals;
  fit.stop = [&] { return !unlogged.empty() || (signals && signals->received() != 0); };
  auto epochs = trainer.fit(*data, fit);
  running = &epochs;
  on_first_of_started(world, [&] {
    if (log)
      naming(
          "--log",
          [&] {
            const Progress& at = trainer.progress();
            at.step > 0 || o.resumes ? log->resume_at(at.step, at.evaluation_due && validation)
                                     : log->restart();
          },
          " ");
    return std::string();
  });

  const std::string head =
      active ? preamble("lamina train", o, trainer, plan, world) : std::string();
  const int most = o.elastic.max_ranks;
  const auto own = options_of(o, trainer, *data);
  if (first) {
    std::fputs(head.c_str(), stdout);
    std::string more =
        remark(text("data ", data->name(), ": ", data->size(), " images",
                    validation ? text(", validation ", validation->size()) : std::string()));
    if (requests)
      more += remark(text("elastic: ", trainer.ranks().size(), " of ", world.size(), " ranks train",
                          most > world.size() ? text(", there may be ", most) : std::string(),
                          "; ask with: lamina resize ", for_shell(requests->job()), " N"));
    if (o.resumes || trainer.progress().step > 0)
      more += remark(text("resumed at step ", trainer.progress().step));
    if (o.resumes) more += other_options(own, trainer);
    if (const Unmatched& u = unmatched; !u.empty()) {
      const std::size_t all = trainer.network().all_parameters().size();
      more += remark(text("--init ", o.init, ": ", all - u.missing.size() - u.reshaped.size(),
                          " of ", all, " tensors; ", u.text()));
    }
    if (!averaged.empty())
      more += remark(text(averaged.size(),
                          " running statistics go on from their mean over the ranks: the "
                          "checkpoint does not have those of as many"));
    if (log && !log->locked())
      more +=
          remark(text("log ", o.log, ": there are no locks here: another job could write it, too"));
    std::fputs(more.c_str(), stdout);
    std::fflush(stdout);
  }
  for (const auto& [name, mine] : own) trainer.progress().options[name] = mine;
  progress.emplace(first, epochs.total_steps());
  // Up to here there is nothing to save. Without communication ranks cannot agree on a step, and
  // have nothing worth it.
  if (o.comm != "none" || world.size() == 1) signals.emplace();
  for (const Epoch& epoch : epochs) {
    progress->say(epoch.text());
    if (epoch.validation && !std::isfinite(epoch.validation->loss))
      progress->say(remark(text("the loss of this evaluation is ",
                                std::isnan(epoch.validation->loss) ? "not a number" : "infinite")));
    if (epoch.validation)
      with_log([&](JsonLog& to) { log_evaluation(to, epoch, trainer.progress().step); });
  }
  if (const std::string unmet = requests ? requests->end() : ""; !unmet.empty())
    progress->say(remark(text("no resize: ", unmet)));

  int number = 0;
  if (epochs.stopped()) {
    number = world.comm().all_reduce_value(signals->received(), ReduceOp::max);
    if (first)
      std::printf("# %s: ended after step %lld\n", number == 0 ? "no log" : name_of_signal(number),
                  static_cast<long long>(trainer.progress().step));
  }
  signals.reset();  // whoever signals from here on wants an end
  if (trainer.active())
    show_recorded(recorder, o, plan, number != 0, trainer, std::move(over_time), world);
  if (first) show_files(o, recorder.profiler().steps() > 0, world);
  if (number == 0) {
    check(unlogged.empty(), unlogged);
    return 0;
  }
  std::fflush(stdout);
  world.comm().barrier();  // where a status is not 0, nobody waits for long
  return 128 + number;
}

}  // namespace

Command train_command(CLI::App& app) {
  auto o = std::make_shared<TrainOptions>();
  o->model = "lenet";
  CLI::App* sub = app.add_subcommand("train", "train a model and print what every layer cost");
  add_model_flags(*sub, *o);
  add_run_flags(*sub, *o);
  count(*sub, "--epochs", o->epochs, 1, "passes over the data; without --steps 1");
  count(*sub, "--steps", o->steps, 0,
        "end after this many steps in all, or after --epochs, if that is earlier; 0 = all");
  add_optimizer_flags(*sub, *o);
  add_balance_flag(*sub, *o);
  add_elastic_flags(*sub, o->elastic);
  count(*sub, "--limit", o->limit, 0, "use only N images of each set; 0 = all");
  sub->add_flag("--no-augment", o->no_augment, "leave the images as they are");
  sub->add_flag("--no-shuffle", o->no_shuffle, "keep the data set's order");
  count(*sub, "--evaluation-batch", o->evaluation_batch, 1,
        "samples over all ranks in an evaluation; as in training if not given");
  sub->add_flag("--no-validation", o->no_validation, "do not evaluate after each epoch");
  count(*sub, "--loader-threads", o->loader_threads, 1, "threads per rank that decode images", 256)
      ->capture_default_str();
  word(*sub, "--save", o->save, "FILE", "checkpoint, written after each epoch");
  count(*sub, "--save-every", o->save_every, 0, "and after every N steps");
  count(*sub, "--keep", o->keep, 0,
        "besides the last checkpoint keep the N before it, as FILE.step-STEP; 0 = none", 1000000);
  sub->add_flag(
      "--keep-best", o->keep_best,
      "and the one that evaluated best (without validation: of least loss), as FILE.best");
  word(*sub, "--resume", o->resume, "[FILE]",
       "continue from a checkpoint; without FILE, from --save's")
      ->expected(0, 1);
  word(*sub, "--init", o->init, "FILE", "start from the parameters in a safetensors file");
  sub->add_flag("--init-partly", o->not_strict, "--init takes what fits and leaves the rest");
  word(*sub, "--log", o->log, "FILE", "write a JSON object per step and per evaluation");
  count(*sub, "--profile-steps", o->profile_steps, 0, "steps recorded for the table; 0 = none")
      ->capture_default_str();
  add_output_flags(*sub, *o);
  return {sub, [o, sub](World& world) {
            o->resumes = sub->count("--resume") > 0;
            TrainOptions mine = *o;  // it may be called again, on fewer ranks
            return train(mine, world);
          }};
}

}  // namespace lamina::cli
