#include "session.hpp"

#include "processors.hpp"
#include "terminal.hpp"

#include <lamina/base/threads.hpp>
#include <lamina/base/version.hpp>
#include <lamina/comm/alike.hpp>
#include <lamina/comm/nccl.hpp>
#include <lamina/kernels/backends.hpp>
#include <lamina/kernels/gpu_name.hpp>
#include <lamina/network/agree.hpp>
#include <lamina/network/models.hpp>
#include <lamina/plan/add_predicted.hpp>
#include <lamina/profile/report.hpp>
#include <lamina/profile/roofline.hpp>
#include <lamina/profile/table.hpp>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

extern char** environ;

namespace lamina::cli {

namespace {

/// The model without data: its input and number of classes are known before any file is opened.
Network bare_model(const RunOptions& o) {
  Network net = make_model(o.model);
  if (o.image_size == 0) return net;
  Shape input = net.sample();
  input.h = input.w = o.image_size;
  return make_model(o.model, {.input = input});
}

std::int64_t classes_of(const Network& net) { return net.input_shapes(net.graph().back(), 1)[0].c; }

/// Why a file could not be written later; empty if it could. Leaves what is there untouched.
std::string obstacle(const OutputFile& file) {
  struct stat status = {};
  const bool exists = ::stat(file.path.c_str(), &status) == 0;
  if (exists && S_ISDIR(status.st_mode)) return "it is a folder, expected a file";
  if (exists && ::access(file.path.c_str(), W_OK) != 0) return std::strerror(errno);
  if (exists && !(file.replaced && S_ISREG(status.st_mode))) return {};
  // Only making a file tells whether one can be made: think of quotas and read-only file systems.
  const std::string trial = text(file.path, ".trial.", ::getpid());
  const int made = ::open(trial.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (made < 0) return text("cannot make a file beside it: ", std::strerror(errno));
  ::close(made);
  ::unlink(trial.c_str());
  return {};
}

/// A pipe or /dev/null takes what anybody writes.
bool is_device(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::is_other(path, error);
}

/// Makes the folder of the report, where rank 0 finds that it can.
std::string obstacle_of_report(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (!std::filesystem::is_directory(folder))
    return error ? error.message() : "it is a file, expected a folder";
  return obstacle({"--report", folder + "/index.html"});
}

/// Rank 0 writes the files, so rank 0 looks; all ranks throw.
void check_outputs(const std::vector<OutputFile>& files, const std::string& report,
                   const World& world) {
  on_first(world.comm(), [&] {
    std::map<std::string, const char*> flags;  // by what they name
    for (const OutputFile& file : files) {
      const std::string why = file.path.empty() ? "" : obstacle(file);
      check(why.empty(), file.flag, ' ', file.path, ": cannot be written: ", why);
      std::error_code error;
      const auto whole = std::filesystem::weakly_canonical(file.path, error);
      if (file.path.empty() || error || is_device(whole)) continue;
      const auto [before, alone] = flags.emplace(whole.string(), file.flag);
      check(alone, before->second, " and ", file.flag, ": both name ", file.path);
    }
    const std::string why = report.empty() ? "" : obstacle_of_report(report);
    check(why.empty(), "--report ", report, ": cannot be written: ", why);
    return std::string();
  });
}

std::string command_line() {
  std::string line;
  std::ifstream file("/proc/self/cmdline");
  for (std::string argument; std::getline(file, argument, '\0');)
    append(line, text(line.empty() ? "" : " ", for_shell(argument)));
  return line;
}

constexpr std::string_view comment = "#   ";

/// A `#` before every line.
std::string commented(const std::string& lines) {
  std::string s;
  for (std::size_t at = 0; at < lines.size();) {
    const std::size_t end = lines.find('\n', at) + 1;
    append(s, text(comment, std::string_view(lines).substr(at, end - at)));
    at = end;
  }
  return s;
}

Machine ceilings(const RunOptions& o, const World& world, const Backend& backend) {
  bool found = false;
  Machine machine;
  if (o.ceilings != "measure") machine = cached_machine(world, backend, &found);
  const DType arithmetic = backend.arithmetic(parse_dtype(o.dtype));
  const bool whole = machine.peak(arithmetic) > 0 && machine.bandwidth() > 0;
  if ((found && whole) || o.ceilings == "cached") return machine;
  if (world.rank() == 0) {
    const char* when = found ? "again, since something disturbed it" : "once";
    std::fputs(remark(text("measuring what this machine can do (", when,
                           ": `lamina info --machine` shows it)"))
                   .c_str(),
               stdout);
    std::fflush(stdout);
  }
  return cached_machine(world, backend, true);
}

/// What flags say of a GPU's kernels becomes part of the back end's name. They are the same on all
/// ranks, of which `some` are on GPUs.
void choose_kernels(RunOptions& o, bool on_gpu, bool some) {
  const bool tf32 = o.dtype == "tf32";
  check(some || !tf32, "--dtype tf32: GPUs multiply so, expected --device cuda with it");
  check(some || o.workspace == 0, "--workspace: it is for GPUs, expected --device cuda with it");
  if (tf32) o.dtype = name(DType::f32);
  if (!on_gpu) return;
  auto gpu = GpuName::of(o.backend == "auto" ? "cuda" : o.backend);
  if (!gpu) return;  // whoever makes it says what is wrong
  gpu->demands.tf32 |= tf32;
  gpu->demands.deterministic |= o.deterministic;
  if (o.workspace > 0) gpu->demands.most_workspace = std::size_t(o.workspace);
  o.backend = gpu->text();
}

/// Which GPU this rank has: the one that is named, or else the ranks of a host that are on GPUs,
/// `on` says which, take them in turn. And NCCL between them, where all ranks have one of their
/// own.
void take_gpu(RunOptions& o, World& world, const std::vector<int>& on) {
  const int gpus = cuda_devices();
  check(o.comm != "nccl" || gpus > 0, "--comm nccl: no GPU can be used; see lamina info");
  const auto me = std::size_t(world.rank());
  int before = 0;
  for (std::size_t r = 0; r < me; ++r) before += on[r] && world.hosts()[r] == world.hosts()[me];
  int mine = gpus > 0 ? before % gpus : 0;
  if (auto gpu = GpuName::of(o.backend); gpu && gpu->number >= 0)
    mine = gpu->number;
  else if (gpu)
    gpu->number = mine, o.backend = gpu->text();
  if (std::ranges::count(on, 0) > 0) return;
  check(gpus == 0 || mine < gpus, "GPU ", mine, ": expected one from 0 to ", gpus - 1);
  const std::vector<int> all = world.comm().all_gather_value(gpus > 0 ? mine : -1);
  std::set<std::pair<std::string, int>> seats;
  for (std::size_t r = 0; r < all.size(); ++r) seats.insert({world.hosts()[r], all[r]});
  const bool alone = seats.size() == all.size() && std::ranges::count(all, -1) == 0;
  if (o.comm == "nccl" || (o.comm == "auto" && alone && has_nccl() && world.size() > 1))
    world.carry_over([mine](std::shared_ptr<Transport> peers) {
      return nccl_transport(std::move(peers), {Device::Kind::cuda, mine});
    });
}

/// Whether vectors and tiles of bf16 are full in most of what a network multiplies: in layers that
/// take and give 16 channels or more. Elsewhere copies take more than multiplying saves.
bool fills_vectors(const Network& net) {
  double all = 0, full = 0;
  for (const auto& v : net.graph()) {
    if (!v.layer || (v.layer->type() != "Conv2D" && v.layer->type() != "Linear")) continue;
    const std::vector<Shape> xs = net.input_shapes(v, 1);
    const double flop = v.layer->cost(xs, {}, DType::bf16).forward.flops;
    all += flop, full += std::min(xs[0].c, v.shape.c) >= 16 ? flop : 0;
  }
  return full >= all / 2;
}

/// What --dtype auto stands for. All ranks that oneDNN computes on have the same instruction set by
/// now; those that came `late` see for themselves, and are compared with the others.
void choose_dtype(RunOptions& o, const World& world) {
  if (o.dtype != "auto") return;
  const DType narrow = DType::bf16;
  const bool on_gpu = o.backend.starts_with("cuda");
  bool pays = on_gpu || (make_backend(o.backend, narrow)->arithmetic(narrow) == narrow &&
                         fills_vectors(bare_model(o)));
  if (!world.late()) pays = world.comm().all_reduce_value(int(pays), ReduceOp::min) == 1;
  o.dtype = name(pays ? narrow : DType::f32);
  if (pays && !on_gpu) o.backend = mixed_onednn;
}

}  // namespace

void prepare(RunOptions& o, World& world, std::vector<OutputFile> outputs) {
  const bool on_gpu = o.device == "cuda" || o.backend.starts_with("cuda");
  check(!on_gpu || has_cuda(), "device cuda: no CUDA back end is built in; expected auto or cpu");
  check(!on_gpu || o.device != "cpu", "--backend ", o.backend, ": expected --device auto or cuda");
  check(!on_gpu || o.backend == "auto" || o.backend.starts_with("cuda"),
        "--device cuda: expected --backend auto or cuda, got ", o.backend);
  check(o.comm != "nccl" || has_nccl(),
        "--comm nccl: NCCL is not built in; expected auto, mpi or none");
  check(o.comm != "nccl" || on_gpu, "--comm nccl: it is for GPUs, expected --device cuda with it");
  check(o.comm != "mpi" || world.size() > 1,
        "--comm mpi: there is one rank only; start the program with mpirun -n N");
  std::vector<int> on{on_gpu};
  if (!world.late()) on = world.comm().all_gather_value(on[0]);
  choose_kernels(o, on_gpu, std::ranges::count(on, 1) > 0);
  take_processors(o.threads, world);
  if (world.late()) return choose_dtype(o, world);  // the others have seen to it
  outputs.insert(
      outputs.end(),
      {{"--json", o.json}, {"--csv", o.csv}, {"--trace", o.trace}, {"--plan-out", o.plan_out}});
  check_outputs(outputs, o.report, world);
  if (on_gpu) take_gpu(o, world, on);
  const DType most = o.dtype == "auto" ? DType::bf16 : parse_dtype(o.dtype);
  o.agreed = agree_on_instruction_set(world.comm(), o.backend, most);
  choose_dtype(o, world);
  for (const auto& [flag, given] :
       {std::pair("--plan auto", o.plan == "auto"), std::pair("--micro-batch auto", o.fits_memory)})
    if (given) expect_one_backend(flag, world.comm(), o.backend, parse_dtype(o.dtype));
}

void check_recorded(const RunOptions& o, int steps) {
  const bool shows = !o.json.empty() || !o.csv.empty() || !o.trace.empty() || !o.report.empty();
  check(steps > 0 || !shows,
        "--profile-steps 0: --json, --csv, --trace and --report are of recorded steps");
  check(o.sort != "wasted" || o.ceilings != "none",
        "--sort wasted: expected --ceilings auto or measure, with which time is compared");
}

std::unique_ptr<Dataset> open(const RunOptions& o, DataOptions data) {
  const Network net = bare_model(o);
  const Shape x = net.sample();
  data.channels = x.c, data.height = x.h, data.width = x.w;
  data.classes = int(o.classes > 0 ? o.classes : classes_of(net));
  data.seed = o.seed;
  return open_data(o.data, data);
}

Network make_network(const RunOptions& o, const Dataset& data) {
  check(o.classes == 0 || o.classes >= data.classes(), "--classes ", o.classes, ": ", data.name(),
        " has ", data.classes(), " classes: expected as many or more");
  return make_model(o.model, {.classes = o.classes > 0 ? o.classes : data.classes(),
                              .input = data.shape(),
                              .label_smoothing = o.label_smoothing,
                              .global_norm = o.global_norm});
}

Network model_of(const RunOptions& o) {
  return make_model(o.model, {.classes = o.classes,
                              .input = bare_model(o).sample(),
                              .label_smoothing = o.label_smoothing,
                              .global_norm = o.global_norm});
}

namespace {

/// Of --param-group.
void add_group(Optimizer& optimizer, const std::string& s) {
  const auto colon = s.rfind(':');
  const auto fail = [&] {
    throw Error(text("--param-group ", s,
                     ": expected PARAMETER:rate=TIMES,decay=D, as in *.bias:rate=2,decay=0"));
  };
  if (colon == s.npos || colon == 0) fail();
  ParameterGroup group;
  std::istringstream items(s.substr(colon + 1));
  int count = 0;
  for (std::string item; std::getline(items, item, ','); ++count) {
    const auto equals = item.find('=');
    const std::string name = item.substr(0, equals);
    if (equals == item.npos || (name != "rate" && name != "decay")) fail();
    std::size_t used = 0;
    double value = 0;
    try {
      value = std::stod(item.substr(equals + 1), &used);
    } catch (const std::exception&) {
      fail();
    }
    if (used != item.size() - equals - 1) fail();
    if (name == "rate")
      group.rate = value;
    else
      group.weight_decay = value;
  }
  if (count == 0) fail();
  optimizer.group(s.substr(0, colon), group);
}

}  // namespace

Optimizer make_optimizer(const RunOptions& o) {
  const bool adam = o.optimizer.starts_with("adam");
  check(!o.nesterov || o.optimizer == "sgd", "--nesterov: expected --optimizer sgd, got ",
        o.optimizer);
  check(!o.momentum || !adam, "--momentum: expected --optimizer sgd or lars, got ", o.optimizer);
  const double rate = o.lr.value_or(adam ? 1e-3 : o.optimizer == "lars" ? 0.1 : 0.01);
  const double momentum = o.momentum.value_or(0.9);
  const auto made = [&]() -> Optimizer {
    if (o.optimizer == "adam") return Adam{.rate = rate, .weight_decay = o.weight_decay};
    if (o.optimizer == "adamw") return AdamW{.rate = rate, .weight_decay = o.weight_decay};
    if (o.optimizer == "lars")
      return LARS{.rate = rate, .momentum = momentum, .weight_decay = o.weight_decay};
    return SGD{
        .rate = rate, .momentum = momentum, .weight_decay = o.weight_decay, .nesterov = o.nesterov};
  };
  Optimizer optimizer = made();
  optimizer.decay_weights_only(o.decay == "weights").clip_norm(o.clip_norm);
  for (const std::string& group : o.param_groups) add_group(optimizer, group);
  return optimizer;
}

namespace {

/// That of --balance, where it names one.
std::vector<int> proportion(const std::string& balance) {
  std::vector<int> parts;
  if (balance == "auto" || balance == "even") return parts;
  std::istringstream in(balance);
  for (std::string part; std::getline(in, part, ':');) {
    int n = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), n);
    check(error == std::errc() && end == part.data() + part.size() && n > 0, "--balance ", balance,
          ": expected auto, even, or numbers as in 3:1");
    parts.push_back(n);
  }
  return parts;
}

}  // namespace

TrainerOptions trainer_options(const RunOptions& o, std::int64_t batch, const RunPlan& plan) {
  Schedule schedule = parse_schedule(o.schedule);
  schedule.warmup = o.warmup_epochs;
  return {.batch = batch,
          .micro_batch = plan.micro_batch,
          .workers = o.workers,
          .balance = proportion(o.balance),
          .rebalance = o.balance == "auto",
          .evaluation_batch = o.evaluation_batch,
          .backend = o.backend,
          .dtype = parse_dtype(o.dtype),
          .splits = splits_of(plan.decisions),
          .recompute = recompute_of(plan.decisions),
          .frozen = o.frozen,
          .fuse = o.fuse,
          .graph = o.graph == "on",
          .communicate = o.comm != "none",
          .bucket_mb = o.bucket_mb,
          .first_bucket_mb = o.first_bucket_mb,
          .sent_gradients = o.sent_gradients(),
          .loss_scaling = o.loss_scaling(),
          .shard_optimizer = plan.plan.shard_optimizer,
          .schedule = schedule,
          .seed = o.seed};
}

std::unique_ptr<Listener> ranges(const RunOptions& o) {
  if (!o.nvtx) return nullptr;
  auto ranges = cuda_ranges();
  check(ranges != nullptr, "--nvtx: the CUDA back end is not built in");
  return ranges;
}

namespace {

/// What layers say about their kernels, on any rank: a line each.
std::string remarks(const PlacedNetwork& net, const Communicator& ranks) {
  std::string mine, all;
  for (const Step& step : net.steps())
    if (!step.placement.remark.empty()) mine += text(step.name, ": ", step.placement.remark, '\n');
  std::set<std::string> seen;
  for (const std::string& theirs : ranks.all_gather_text(mine)) {
    std::istringstream lines(theirs);
    for (std::string line; std::getline(lines, line);)
      if (seen.insert(line).second) all += remark(line);
  }
  return all;
}

/// Where they do not go as they are.
std::string way_of_gradients(const PlacedNetwork& net) {
  if (!net.placing().narrow()) return {};
  const std::string type(name(*net.placing().sent_gradients));
  for (const Bucket& bucket : net.buckets())
    if (bucket.ranks.narrows()) return text(", from node to node in ", type);
  return text(", none of which leaves a node to go in ", type);
}

}  // namespace

std::string back_end_line(const Backend& backend) {
  return remark(text("back end ", backend.name(), ": ", backend.description()));
}

std::string preamble(const std::string& program, const RunOptions& o, const Trainer& trainer,
                     const RunPlan& plan, const World& world) {
  const PlacedNetwork& net = trainer.network();
  const auto& placing = net.placing();
  const Communicator& ranks = trainer.ranks();
  std::int64_t parameters = 0, frozen = 0;
  for (const auto& p : net.all_parameters()) {
    if (p.trained || p.frozen) parameters += p.whole.size();
    if (p.frozen) frozen += p.whole.size();
  }
  Memory m = trainer.memory();
  const std::array mine{m.parameters,  m.gradients, m.optimizer,
                        m.activations, m.workspace, m.messages};
  for (const auto& [w, dw, states, activations, workspace, messages] : ranks.all_gather_value(mine))
    if (const Memory other{w, dw, states, activations, workspace, messages};
        other.total() > m.total())
      m = other;

  const auto several = [](std::size_t n, const char* what) {
    return text(n, ' ', what, n == 1 ? "" : "s");
  };
  const MemorySpace& memory = placing.backend->memory();
  std::string s = remark(text(program, ' ', version));
  append(s, remark(text("model ", o.model, ", ", parameters, " parameters",
                        frozen > 0 ? text(", ", frozen, " of them frozen") : std::string(),
                        ", input ", net.network().sample(), ", ", placing.dtype)));
  append(s, back_end_line(*placing.backend));
  const DType computed = placing.backend->arithmetic(placing.dtype.compute);
  if (computed != placing.dtype.compute && computed == wide(placing.dtype.compute))
    append(s, remark(text(name(placing.dtype.compute), " is computed in ", name(computed),
                          " here: that saves memory, not time")));
  if (!o.agreed.empty()) append(s, remark(o.agreed));
  const bool unlike = placing.unlike_backends;
  if (unlike)
    append(s,
           remark("ranks compute with unlike back ends: weights lie plain, and come from one rank "
                  "after each update; there are no ceilings"));
  if (world.rank() == 0 && has_cuda() && memory.on_host())  // to ask takes a driver its time
    append(s, remark(cuda_devices() > 0 ? "there is a GPU: --device cuda uses it"
                                        : "CUDA is built in, but no GPU can be used"));
  append(s, remark(text("communication ", !trainer.options().communicate
                                              ? std::string("none (for timing only)")
                                          : ranks.size() > 1 ? ranks.carrier()
                                                             : std::string("none needed"))));
  const auto rows = ranks.all_gather_value(net.rows().size * placing.turns());
  const auto counts = ranks.all_gather_value(threads());
  const auto devices =
      ranks.all_gather_text(text(memory.on_host() ? "cpu" : memory.name(), unlike ? ", " : "",
                                 unlike ? placing.backend->name() : std::string()));
  for (int r = 0; r < ranks.size(); ++r)
    append(s, remark(text("rank ", r, "  host ", world.hosts()[std::size_t(r)], "  device ",
                          devices[std::size_t(r)], "  threads ", counts[std::size_t(r)], "  batch ",
                          rows[std::size_t(r)])));
  if (ranks.size() == world.size()) append(s, crowding(world));
  const char* const parts =
      placing.workers.count > 0 ? " workers' parts of " : " micro-batches of ";
  const std::string micro = placing.micro_batches > 1
                                ? text(" in ", placing.micro_batches, parts, placing.batch)
                                : std::string();
  append(s, remark(text("global batch ", trainer.options().batch, micro, " over ",
                        several(std::size_t(ranks.size()), "rank"), ", plan ", plan.name,
                        plan.plan.shard_optimizer ? ", sharded optimizer" : "")));
  if (!plan.fits.empty()) append(s, remark(plan.fits));
  append(s, remark(text(several(net.buckets().size(), "gradient bucket"), " (--bucket-mb ",
                        o.bucket_mb, " --first-bucket-mb ", o.first_bucket_mb, ")",
                        way_of_gradients(net))));
  append(s, remark(format("memory of %s, MB: parameters %.1f, gradients %.1f, optimizer %.1f, "
                          "activations %.1f, workspace %.1f, messages %.1f",
                          ranks.size() > 1 ? "the fullest rank" : "the rank",
                          double(m.parameters) / 1e6, double(m.gradients) / 1e6,
                          double(m.optimizer) / 1e6, double(m.activations) / 1e6,
                          double(m.workspace) / 1e6, double(m.messages) / 1e6)));
  append(s, remarks(net, ranks));
  if (plan.shown) {
    const int width = remark_width() - int(comment.size());
    append(s, commented(plan_table(plan.decisions, net, {.width = width, .wide = o.wide})));
  }
  for (char** e = environ; *e; ++e)
    if (std::string_view(*e).starts_with("LAMINA_")) append(s, remark(*e));
  return s;
}

RunTrace::RunTrace(const RunOptions& o, const World& world, const PlacedNetwork& network)
    : writer_(o.trace, world.rank(), world.size(), world.hosts()[std::size_t(world.rank())]) {
  for (const Step& step : network.steps()) layers_.push_back(step.name);
}

void RunTrace::step(const Profiler& profiler) {
  writer_.step(profiler.steps(), profiler.last_begin(), profiler.last_step(), layers_);
}

std::unique_ptr<RunTrace> open_trace(const RunOptions& o, const World& world,
                                     const PlacedNetwork& network) {
  return o.trace.empty() ? nullptr : std::make_unique<RunTrace>(o, world, network);
}

void show_profile(Profile profile, const RunOptions& o, const RunPlan& plan,
                  const PlacedNetwork& network, const World& world) {
  const bool first = world.rank() == 0;
  profile.model = o.model;
  profile.command = command_line();
  if (o.ceilings != "none" && !network.placing().unlike_backends)
    profile.machine = ceilings(o, world, *network.placing().backend);
  add_predicted(profile, network, plan.plan);
  if (!first) return;
  if (!o.json.empty()) write_profile_json(o.json, profile);
  if (!o.csv.empty()) write_profile_csv(o.csv, profile);
  if (!o.report.empty()) write_report(o.report, profile);
  std::string sort = o.sort;
  if (sort == "wasted" && !has_ceilings(profile)) {
    std::fputs(remark("--sort wasted: there are no ceilings, sorted by time").c_str(), stdout);
    sort = "time";
  }
  const char* no_colour = std::getenv("NO_COLOR");  // https://no-color.org
  const std::string lines =
      table(profile, {.width = table_width(),
                      .wide = o.wide,
                      .sort = parse_sort(sort),
                      .group = parse_group(o.group),
                      .top = o.top,
                      .colour = terminal_columns() > 0 && !(no_colour && *no_colour)});
  std::printf("\n%s\n", lines.c_str());
  std::fflush(stdout);
}

bool lists_models(const RunOptions& o, const World& world) {
  if (!o.list_models) return false;
  std::string all;
  for (const auto model : model_names()) append(all, text(model, '\n'));
  if (world.rank() == 0) std::fputs(all.c_str(), stdout);
  return true;
}

}  // namespace lamina::cli
