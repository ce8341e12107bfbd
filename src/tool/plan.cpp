// `lamina plan`: the plan that trains a model fastest on a cluster, and what it is predicted to
// take there. Needs no device and no ranks.
#include "commands.hpp"
#include "flags.hpp"
#include "session.hpp"
#include "terminal.hpp"
#include "validate.hpp"

#include <lamina/base/file.hpp>
#include <lamina/base/naming.hpp>
#include <lamina/base/version.hpp>
#include <lamina/kernels/backends.hpp>
#include <lamina/network/agree.hpp>
#include <lamina/plan/calibrate.hpp>
#include <lamina/plan/prediction.hpp>

#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

namespace lamina::cli {

namespace {

struct Options : RunOptions {
  std::string cluster = "h100-ndr", cluster_out, svg, convergence, sweep;
  int devices = 0, most_devices = 4096;
  bool scaling = false, unseeded = false, calibrate = false, validate = false;
  std::string for_training;  ///< of what was said, the flags that a training must have, too
  PlannerOptions planner;
  ValidateOptions validation;
};

/// What is planned, for any number of devices and any batch.
struct Problem {
  Network network;
  Cluster cluster;  // as many devices as were asked for
  PlaceOptions placing;
  UpdateRule rule;
  std::int64_t batch = 1;
  std::shared_ptr<const LayerTimes> times = {};  // by formulas

  int devices() const { return cluster.devices(); }
  std::int64_t batch_of_device() const { return std::max<std::int64_t>(1, batch / devices()); }
};

Cluster cluster_of(const Options& o) {
  const bool a_file = o.cluster.find_first_of("/.") != o.cluster.npos;
  const Cluster all = naming(
      "--cluster", [&] { return find_cluster(o.cluster); }, a_file ? " " : ": ");
  return o.devices > 0 ? naming("--devices", [&] { return all.of(o.devices); }) : all;
}

/// In which convolutions are fastest on all of its devices.
DType fastest_dtype(const Cluster& cluster) {
  for (const Nodes& nodes : cluster.nodes)
    if (nodes.device.flops_of(DType::bf16).conv <= nodes.device.flops_of(DType::f32).conv)
      return DType::f32;
  return DType::bf16;
}

/// On `ranks` ranks that are there, or on as many devices as the flags say.
Problem problem_of(const Options& o, int ranks) {
  Problem p{.network = model_of(o),
            .cluster = o.calibrate ? Cluster() : cluster_of(o),
            .placing = {},
            .rule = make_optimizer(o).rule()};
  p.batch = o.batch(o.calibrate ? ranks : p.devices(), 32);
  const std::int64_t at_once = o.at_once(p.batch);
  Plan plan;
  for (const std::string& layers : o.recompute)
    plan.recompute(layers, text("--recompute ", layers));
  p.placing.batch = at_once, p.placing.micro_batches = int(p.batch / at_once);
  p.placing.dtype = parse_dtype(o.dtype);
  if (!o.recompute.empty())
    p.placing.recompute = recompute_of(decide(plan, p.network, at_once, true));
  p.placing.bucket_mb = o.bucket_mb, p.placing.first_bucket_mb = o.first_bucket_mb;
  p.placing.sent_gradients = o.sent_gradients();
  p.placing.shard_optimizer = o.shard_optimizer;
  return p;
}

/// How far scaling is, for a person: on stderr, where that is a terminal.
class Progress {
 public:
  Progress() : shown_(::isatty(STDERR_FILENO) == 1) {}
  ~Progress() {
    if (shown_) std::fputs("\r\033[K", stderr);
  }
  void say(const std::string& line) const {
    if (shown_) std::fprintf(stderr, "\r%s\033[K", line.c_str());
  }

 private:
  bool shown_;
};

ScalingPoint point(const Problem& p, int devices, std::int64_t batch, const PlaceOptions& placing,
                   const Options& o, const Progress& progress) {
  progress.say(text("predicting ", devices, devices == 1 ? " device" : " devices", ", batch ",
                    batch, " ..."));
  return predict_point(p.network, placing, p.rule, p.cluster, devices, batch, o.planner);
}

void predict_scaling(Prediction& to, const Problem& p, const Options& o) {
  const Progress progress;
  for (const int n : scaling_devices(p.cluster, o.most_devices)) {
    to.strong.push_back(point(p, n, p.batch, p.placing, o, progress));
    to.weak.push_back(point(p, n, p.batch_of_device() * n, p.placing, o, progress));
  }
}

void predict_sweep(Prediction& to, const Problem& p, const Options& o) {
  const Progress progress;
  std::vector<std::int64_t> batches = {p.batch};
  std::vector<int> devices = {p.devices()};
  if (o.sweep != "devices") {
    batches.clear();
    for (const std::int64_t times : {1, 2, 4, 8, 16})  // quarters of the batch
      if (const std::int64_t b = p.batch * times / 4; b > 0) batches.push_back(b);
  }
  if (o.sweep != "batch") devices = scaling_devices(p.cluster, o.most_devices);
  for (const int n : devices)
    for (const std::int64_t b : batches) {
      PlaceOptions placing = p.placing;
      const std::int64_t at_once = o.micro_batch > 0 ? std::min(b, placing.batch) : b;
      placing.micro_batches = int(b / at_once);
      if (b % at_once == 0)
        to.sweep.push_back(point(p, n, b, placing, o, progress));
      else
        to.sweep.push_back(
            {.devices = n,
             .batch = b,
             .reason = text("a batch of ", b, " cannot be cut into micro-batches of ", at_once)});
    }
}

void print(const Prediction& p, const Options& o) {
  const PlanTableOptions options{.width = table_width(), .wide = o.wide};
  std::string s = remark(text("lamina plan ", version));
  for (const std::string& line : prediction_remarks(p)) append(s, remark(line));
  append(s, text('\n', layer_table(p, options), '\n', plans_table(p, options)));
  if (!p.strong.empty())
    append(s, text("\nstrong scaling: batch ", p.strong.front().batch, '\n',
                   scaling_table(p.strong, options),
                   "\nweak scaling: ", p.weak.front().batch / p.weak.front().devices,
                   " per device\n", scaling_table(p.weak, options)));
  if (!p.sweep.empty()) append(s, text("\n", sweep_table(p.sweep)));
  std::fputs(s.c_str(), stdout);
  std::fflush(stdout);
}

std::string convergence_csv(const Prediction& p) {
  std::string s = "iteration,seconds\n";
  for (std::size_t i = 0; i < p.convergence.size(); ++i)
    append(s, text(i + 1, ',', exact(p.convergence[i]), '\n'));
  return s;
}

void write_files(const Prediction& p, const FoundPlan& found, const Options& o) {
  if (!o.json.empty())
    naming(
        "--json", [&] { write_prediction_json(o.json, p); }, " ");
  if (!o.svg.empty())
    naming(
        "--svg", [&] { write_file(o.svg, scaling_svg(p)); }, " ");
  if (!o.convergence.empty())
    naming(
        "--convergence",
        [&] {
          write_file(o.convergence,
                     o.convergence.ends_with(".csv") ? convergence_csv(p) : convergence_svg(p));
        },
        " ");
  if (o.plan_out.empty()) return;
  naming(
      "--plan-out", [&] { write_plan(o.plan_out, plan_of(found, o.model)); }, " ");
  const std::string command = text("mpirun -n ", p.devices, " bench_network --model ", o.model,
                                   o.for_training, o.dtype == "f32" ? "" : " --dtype " + o.dtype,
                                   " --global-batch ", p.batch, " --plan ", for_shell(o.plan_out));
  std::printf("# to run it: %s\n", command.c_str());  // in one line, to be copied
}

/// What the ranks of this job are, and how long kernels take on them. Collective.
void measure(Problem& p, const Options& o, const World& world) {
  PlaceOptions placing = p.placing;
  placing.backend = make_backend(o.backend, placing.dtype.compute);
  const Calibration c = calibrate(p.network, placing, p.rule, world, {.planner = o.planner});
  p.cluster = c.cluster, p.times = c.times;
  if (world.rank() != 0) return;
  std::fputs(remark(text(c.measured, " layers measured on ", world.size(),
                         world.size() == 1 ? " rank" : " ranks",
                         c.settled ? "" : "; some of the best plan's are not known"))
                 .c_str(),
             stdout);
  if (!o.cluster_out.empty())
    naming(
        "--cluster-out", [&] { write_cluster(o.cluster_out, p.cluster); }, " ");
}

/// What does not go with --validate.
void check_validation(const Options& o, const World& world) {
  check(world.size() > 1,
        "--validate runs plans on the ranks of this job, and there is one only: "
        "start it with mpirun");
  check(o.devices == 0 && !o.scaling && o.sweep.empty() && o.plan_out.empty() &&
            o.cluster_out.empty() && o.convergence.empty() && o.micro_batch == 0 &&
            !o.fits_memory && !o.shard_optimizer && o.recompute.empty(),
        "--validate runs many plans as they are: expected no --devices, --scaling, --sweep, "
        "--plan-out, --cluster-out, --convergence, --micro-batch, --shard-optimizer or --recompute "
        "with it");
}

int run_plan(Options& o, World& world) {
  if (lists_models(o, world)) return 0;
  check(o.calibrate || o.validate || world.size() == 1,
        "lamina plan needs no ranks: start it without mpirun; --devices N says how many to plan "
        "for; or --calibrate measures the ranks there are");
  check(o.svg.empty() || o.scaling, "--svg needs --scaling, which it draws");
  check(!o.calibrate || (o.devices == 0 && !o.scaling && o.sweep.empty()),
        "--calibrate plans for the ranks there are: expected neither --devices, nor --scaling, nor "
        "--sweep with it");
  check(o.calibrate || o.cluster_out.empty(), "--cluster-out needs --calibrate, which measures it");
  if (o.validate) check_validation(o, world);
  const bool measures = o.calibrate || o.validate;  // otherwise the cluster need not be this one
  if (o.dtype == "auto" && !measures) o.dtype = name(fastest_dtype(cluster_of(o)));
  prepare(o, world,
          {{"--svg", o.svg}, {"--convergence", o.convergence}, {"--cluster-out", o.cluster_out}});
  if (measures) expect_one_backend("lamina plan", world.comm(), o.backend, parse_dtype(o.dtype));
  o.planner.search.seeded = !o.unseeded;
  make_searcher(o.planner.searcher, o.planner.search);  // says what is wrong with it
  if (o.validate) {
    o.validation.planner = o.planner;
    return validate(o, o.validation, world);
  }
  Problem problem = problem_of(o, world.size());
  if (o.calibrate) measure(problem, o, world);
  if (world.rank() != 0) return 0;
  const FoundPlan found = find_plan(problem.network, problem.placing, problem.rule, problem.cluster,
                                    problem.devices(), o.planner, problem.times);
  Prediction p = prediction_of(found, o.model, o.planner.searcher);
  check(o.convergence.empty() || !p.convergence.empty(),
        "--convergence: no plan that the search found fits, and a built-in one was taken: there is "
        "nothing to be written");
  if (o.scaling) predict_scaling(p, problem, o);
  if (!o.sweep.empty()) predict_sweep(p, problem, o);
  print(p, o);
  write_files(p, found, o);
  return 0;
}

void add_search_flags(CLI::App& app, Options& o) {
  SearchOptions& search = o.planner.search;
  std::vector<std::string> names;
  for (const auto name : searcher_names()) names.emplace_back(name);
  choice(app, "--search", o.planner.searcher, names, "who looks for the plan")
      ->capture_default_str();
  count(app, "--swarm-size", search.swarm.particles, 1, "particles of the swarm")
      ->capture_default_str();
  count(app, "--swarm-iterations", search.swarm.iterations, 1, "how often they move")
      ->capture_default_str();
  number(app, "--inertia", search.swarm.inertia, "of a particle's velocity", 0, 1)
      ->capture_default_str();
  count(app, "--seed", search.seed, 0, "of random searches", UINT64_MAX)->capture_default_str();
  app.add_flag("--unseeded", o.unseeded, "let swarm and mcmc begin without what exact finds");
  word(app, "--convergence", o.convergence, "FILE.svg|.csv",
       "write the best step so far over the iterations of the search")
      ->check([](const std::string& s) {
        return s.ends_with(".svg") || s.ends_with(".csv")
                   ? std::string()
                   : text("expected a file that ends in .svg or .csv, got '", s, "'");
      });
}

/// What would have no effect.
void check_said(const CLI::App& app, const Options& o) {
  const bool measures = o.calibrate || o.validate;
  for (const char* flag : {"--plans", "--rounds", "--longest"})
    check(o.validate || app.count(flag) == 0, flag, " needs --validate, which runs plans");
  for (const char* flag : {"--backend", "--threads"})
    check(measures || app.count(flag) == 0, flag,
          " needs --calibrate or --validate, which measure kernels");
  check(o.scaling || !o.sweep.empty() || app.count("--most-devices") == 0,
        "--most-devices needs --scaling or --sweep, which go up to there");
  const std::string& searcher = o.planner.searcher;
  for (const char* flag : {"--swarm-size", "--swarm-iterations", "--inertia"})
    check(searcher == "swarm" || app.count(flag) == 0, flag, " needs --search swarm, got ",
          searcher);
  check(searcher == "swarm" || searcher == "mcmc" || !o.unseeded,
        "--unseeded needs --search swarm or mcmc, got ", searcher);
  check(!measures || app.count("--cluster") == 0,
        "--cluster: --calibrate and --validate plan for the ranks there are");
  check(!o.calibrate || !o.validate, "--calibrate and --validate: expected one of the two");
  check(o.workers == 0, "--workers: layers are split by samples there, and no plan is to be found");
}

/// Of what was said about the model and its update, but for its name: a training must be told, too.
std::string flags_for_training(const CLI::App& said) {
  CLI::App training;
  RunOptions unused;
  add_model_flags(training, unused), add_rule_flags(training, unused);
  add_bucket_flags(training, unused);
  std::string all;
  for (const CLI::Option* flag : said.get_options()) {
    const std::string name = flag->get_name();
    if (flag->count() == 0 || name == "--model" || !training.get_option_no_throw(name)) continue;
    append(all, ' ' + name);
    if (flag->get_items_expected_max() == 0) continue;  // true
    for (const std::string& value : flag->results()) append(all, ' ' + for_shell(value));
  }
  return all;
}

}  // namespace

Command plan_command(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App* sub = app.add_subcommand(
      "plan", "find the plan that is fastest on a cluster, and predict its steps");
  add_model_flags(*sub, *o);
  word(*sub, "--cluster", o->cluster, "NAME|FILE", "the machine; docs/planning.md lists the names")
      ->capture_default_str();
  count(*sub, "--devices", o->devices, 1, "how many of them; all of the cluster by default");
  sub->add_flag("--calibrate", o->calibrate,
                "measure the ranks of this job, and the layers on them, and plan for these");
  sub->add_flag("--validate", o->validate,
                "run many plans on the ranks of this job, and compare what they were predicted");
  count(*sub, "--plans", o->validation.plans, 1, "that --validate runs")->capture_default_str();
  count(*sub, "--rounds", o->validation.rounds, 1, "in which it runs each of them")
      ->capture_default_str();
  number(*sub, "--longest", o->validation.longest,
         "seconds of a step: plans but data that are predicted to take longer do not run")
      ->capture_default_str();
  word(*sub, "--cluster-out", o->cluster_out, "FILE", "write what was measured of them");
  word(*sub, "--backend", o->backend, "NAME", "whose kernels are measured")->capture_default_str();
  count(*sub, "--threads", o->threads, 0,
        "threads per rank; 0 = this rank's share of the processors", 4096);
  add_batch_flags(*sub, *o);
  word(*sub, "--dtype", o->dtype, "TYPE",
       "f32, f64, bf16, f16, or auto: bf16 where the devices multiply that faster than f32")
      ->capture_default_str();
  add_rule_flags(*sub, *o);
  add_bucket_flags(*sub, *o);
  add_memory_flags(*sub, *o);
  add_search_flags(*sub, *o);
  sub->add_flag("--scaling", o->scaling, "predict strong and weak scaling over devices");
  choice(*sub, "--sweep", o->sweep, {"batch", "devices", "batch,devices"},
         "predict other batches, numbers of devices, or all of both");
  count(*sub, "--most-devices", o->most_devices, 1, "up to which these go; many take long", 1 << 20)
      ->capture_default_str();
  sub->add_flag("--wide", o->wide, "tables with a row per layer and all columns");
  word(*sub, "--json", o->json, "FILE", "write all of it as JSON");
  word(*sub, "--svg", o->svg, "FILE", "draw the scaling");
  word(*sub, "--plan-out", o->plan_out, "FILE", "write the plan, which --plan FILE takes");
  return {sub, [o, sub](World& world) {
            check_said(*sub, *o);
            o->for_training = flags_for_training(*sub);
            return run_plan(*o, world);
          }};
}

}  // namespace lamina::cli
