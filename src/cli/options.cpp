#include "options.hpp"

#include "flags.hpp"

#include <lamina/base/version.hpp>
#include <lamina/comm/alike.hpp>

#include <algorithm>
#include <charconv>
#include <new>
#include <span>
#include <stdexcept>
#include <utility>

namespace lamina::cli {

std::int64_t RunOptions::batch(int ranks, std::int64_t fallback) const {
  check(global_batch == 0 || batch_size == 0,
        "--batch-size (per rank) and --global-batch exclude each other");
  if (global_batch > 0) return global_batch;
  const std::int64_t size = batch_size > 0 ? batch_size : fallback;
  return scaling == "strong" ? size : size * ranks;
}

std::int64_t RunOptions::at_once(std::int64_t batch) const {
  check(micro_batch == 0 || batch % micro_batch == 0, "--micro-batch ", micro_batch,
        " does not divide the global batch of ", batch);
  return micro_batch > 0 ? micro_batch : batch;
}

void add_model_flags(CLI::App& app, RunOptions& o) {
  word(app, "--model", o.model, "NAME", "the model; --list-models prints the names")
      ->capture_default_str();
  app.add_flag("--list-models", o.list_models, "print the models and end");
  count(app, "--image-size", o.image_size, 0, "height and width of the input; 0 = the model's own",
        65535);
  count(app, "--classes", o.classes, 0,
        "outputs of the model; 0 = the data set's classes, or the model's own");
  app.add_flag("--global-norm", o.global_norm,
               "batch norm over the global batch, not per rank; not for workers");
  number(app, "--label-smoothing", o.label_smoothing, "of the loss", 0, 0.99);
}

void add_batch_flags(CLI::App& app, RunOptions& o) {
  count(app, "--batch-size", o.batch_size, 1, "samples per rank");
  count(app, "--global-batch", o.global_batch, 1, "samples over all ranks");
  app.add_option_function<std::string>(
         "--micro-batch",
         [&o](const std::string& s) {
           o.fits_memory = s == "auto";
           o.micro_batch = o.fits_memory ? 0 : std::stoll(s);
         },
         "samples over all ranks that run at once, where memory does not hold a batch; their "
         "gradients add up; auto = as many as fit")
      ->type_name("N|auto")
      ->check(detail::whole_or("auto", 1, 0x7FFFFFFF));
  count(app, "--workers", o.workers, 1,
        "equal parts of the global batch that ranks share out and run in turn: on 1, 2, 4, ... "
        "ranks the same bits",
        65535);
}

void add_balance_flag(CLI::App& app, RunOptions& o) {
  word(
      app, "--balance", o.balance, "auto|even|N:N:...",
      "how many workers ranks run: moved to where they are done first, as many on each, or in this "
      "proportion")
      ->capture_default_str();
}

std::optional<DType> RunOptions::sent_gradients() const {
  if (grad_dtype == "auto") return {};
  return parse_dtype(grad_dtype);
}

LossScaling RunOptions::loss_scaling() const {
  LossScaling how = LossScaling::usual(loss_scale == "auto" ? parse_dtype(dtype) : DType::f16);
  if (loss_scale == "off") how = LossScaling();
  const bool dynamic = how.on() && (loss_scale == "auto" || loss_scale == "dynamic");
  check(dynamic || !loss_scale_steps, "--loss-scale-steps: expected --loss-scale dynamic, got ",
        loss_scale == "auto" ? "none with --dtype " + dtype : loss_scale);
  if (loss_scale_steps) how.double_after = *loss_scale_steps;
  if (dynamic || !how.on()) return how;
  const char* const end = loss_scale.data() + loss_scale.size();
  const auto [at, error] = std::from_chars(loss_scale.data(), end, how.start);
  check(error == std::errc() && at == end && how.start > 0, "--loss-scale ", loss_scale,
        ": expected dynamic, off, or a power of two");
  how.double_after = 0;
  return how;
}

void add_bucket_flags(CLI::App& app, RunOptions& o) {
  choice(app, "--grad-dtype", o.grad_dtype, {"auto", "f32", "bf16"},
         "in which gradients go from node to node; auto = as they are, in f32 unless --dtype is "
         "f64. They are added up in f32 in any case")
      ->capture_default_str();
  number(app, "--bucket-mb", o.bucket_mb, "size of a gradient bucket in MB; 0 = one per layer")
      ->capture_default_str();
  number(app, "--first-bucket-mb", o.first_bucket_mb, "size of the first bucket, near the loss")
      ->capture_default_str();
}

void add_memory_flags(CLI::App& app, RunOptions& o) {
  app.add_option("--recompute", o.recompute,
                 "do not keep what these layers make for backward: compute it once more. LAYER may "
                 "have * and ?")
      ->type_name("LAYER")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_flag("--shard-optimizer", o.shard_optimizer,
               "each rank keeps and updates a part of what the ranks hold alike");
}

void add_rule_flags(CLI::App& app, RunOptions& o) {
  choice(app, "--optimizer", o.optimizer, {"sgd", "adam", "adamw", "lars"}, "the update rule")
      ->capture_default_str();
  number(app, "--momentum", o.momentum, "of sgd and lars", 0, 0.9999)->default_str("0.9");
  app.add_flag("--nesterov", o.nesterov, "Nesterov momentum");
}

void add_kernel_flags(CLI::App& app, RunOptions& o) {
  choice(app, "--dtype", o.dtype, {"f32", "bf16", "f64", "f16", "tf32", "auto"},
         "of values and products; f64 and f16 with the reference or a GPU; tf32 on a GPU = f32, "
         "multiplied as TF32; auto = what is fastest: bf16 where the device multiplies it, with "
         "layers in f32 that are faster so; f32 on processors where layers have few channels")
      ->capture_default_str();
  choice(app, "--device", o.device, {"auto", "cpu", "cuda"}, "where the kernels run")
      ->capture_default_str();
  word(app, "--backend", o.backend, "NAME", "auto, reference, onednn, onednn:mixed, cuda or cuda:N")
      ->capture_default_str();
  app.add_flag("--deterministic", o.deterministic,
               "only kernels that give the same bits whenever they run: of GPUs, since those of "
               "processors always do");
  bytes(app, "--workspace", o.workspace,
        "of a GPU, that a kernel of its libraries may write to while it runs; by default no limit");
  app.add_flag("--fuse,!--no-fuse", o.fuse,
               "let a layer's kernel take over the activation or sum behind it");
  count(app, "--threads", o.threads, 0, "threads per rank; 0 = this rank's share of the processors",
        1024);
  count(app, "--seed", o.seed, 0, "of weights, data order, augmentation and dropout", UINT64_MAX)
      ->capture_default_str();
}

void add_run_flags(CLI::App& app, RunOptions& o) {
  add_batch_flags(app, o);
  choice(app, "--scaling", o.scaling, {"weak", "strong"},
         "what --batch-size counts: weak = per rank, strong = in all")
      ->capture_default_str();
  bytes(app, "--memory", o.memory,
        "of each host or GPU, for --micro-batch auto and --plan auto; by default what is free");
  word(app, "--data", o.data, "SOURCE",
       "synthetic, mnist:DIR, cifar10:DIR, cifar100:DIR or images:DIR")
      ->capture_default_str();
  add_kernel_flags(app, o);
  choice(app, "--graph", o.graph, {"on", "off"},
         "on = where a GPU can record a training step it runs that as a whole, as a CUDA graph")
      ->capture_default_str();
  choice(app, "--comm", o.comm, {"auto", "mpi", "nccl", "none"},
         "none = no communication at all, for timing only")
      ->capture_default_str();
  add_bucket_flags(app, o);
  word(app, "--plan", o.plan, "data|owt|spatial|filter|auto|FILE",
       "how layers are split over the ranks; data = all of them by samples, auto = as is fastest")
      ->capture_default_str();
  app.add_option("--split", o.split,
                 "split layers another way than the plan; later ones win. LAYER may have * and ?; "
                 "AXIS is batch, channel, input, height or width")
      ->type_name("LAYER=AXIS:PARTS,...")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_flag("--allow-fallback", o.allow_fallback,
               "split by samples where what --split or a plan's FILE says is impossible");
  add_memory_flags(app, o);
}

void add_optimizer_flags(CLI::App& app, RunOptions& o) {
  add_rule_flags(app, o);
  number(app, "--lr", o.lr,
         "learning rate; by default 0.01 (sgd), 0.001 (adam, adamw), 0.1 (lars)");
  number(app, "--weight-decay", o.weight_decay, "L2 penalty; decoupled with adamw")
      ->capture_default_str();
  choice(app, "--decay", o.decay, {"all", "weights"},
         "what decays; weights = not biases and batch norm")
      ->capture_default_str();
  word(app, "--schedule", o.schedule, "NAME",
       "constant, step:EPOCHS,FACTOR, multistep:EPOCH,...,FACTOR, poly:POWER or cosine")
      ->capture_default_str();
  number(app, "--warmup-epochs", o.warmup_epochs, "linear warm-up of the learning rate");
  app.add_option("--freeze", o.frozen,
                 "do not train these parameters, as conv1.weight. PARAMETER may have * and ?")
      ->type_name("PARAMETER")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--param-group", o.param_groups,
                 "train these at a multiple of the learning rate, or with a weight decay of their "
                 "own; later ones win. PARAMETER may have * and ?")
      ->type_name("PARAMETER:rate=TIMES,decay=D")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  word(app, "--loss-scale", o.loss_scale, "dynamic|NUMBER|off",
       "multiply the gradient of the loss by it, so that small gradients do not vanish; dynamic = "
       "halved when a gradient overflows, doubled after many steps without. auto = dynamic in f16, "
       "else off")
      ->capture_default_str();
  count(app, "--loss-scale-steps", o.loss_scale_steps, 1,
        "so many steps without overflow double a dynamic scale")
      ->default_str(text(LossScaling().double_after));
  number(app, "--clip-norm", o.clip_norm, "scale gradients down to this norm; 0 = never");
}

void add_output_flags(CLI::App& app, RunOptions& o) {
  word(app, "--json", o.json, "FILE", "write the per-layer profile as JSON");
  word(app, "--csv", o.csv, "FILE", "write the per-layer profile as CSV");
  word(app, "--trace", o.trace, "FILE",
       "write the recorded steps as a Chrome trace; where there are several ranks a file for each, "
       "such as trace.0.json for trace.json");
  word(app, "--report", o.report, "DIR", "write the report: open DIR/index.html");
  word(app, "--plan-out", o.plan_out, "FILE", "write what is used as a plan");
  app.add_flag("--nvtx", o.nvtx, "mark layers as ranges of NVTX; steps then run kernel by kernel");
  choice(app, "--ceilings", o.ceilings, {"auto", "measure", "none"},
         "what the machine can do at most: auto = from the cache, measured if it is not there")
      ->capture_default_str();
  app.add_flag("--wide", o.wide, "table with a row per pass and all columns");
  count(app, "--top", o.top, 0, "only the N most expensive layers of the table; 0 = all");
  choice(app, "--sort", o.sort, {"order", "time", "wasted", "name"}, "rows of the table")
      ->capture_default_str();
  choice(app, "--group", o.group, {"layer", "type", "stage"},
         "what a row of the table sums up; a stage: layers whose outputs are of one size")
      ->capture_default_str();
}

namespace {

// What each rank may have its own way: it changes no result, and no rank waits for it.
constexpr std::string_view of_one_rank[] = {
    "--threads",       "--loader-threads", "--json",   "--csv",  "--trace", "--report",
    "--log",           "--wide",           "--top",    "--sort", "--group", "--plan-out",
    "--display-every", "--device",         "--backend"};
// Files of which rank 0 alone needs the name; the others must know that there is one.
constexpr std::string_view files_of_rank_0[] = {"--save", "--resume", "--init"};

bool contains(std::span<const std::string_view> names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

/// What is run, before its flags are looked at; `asked` is help, or nothing.
void check_program(const CLI::App& app, const std::string& asked, const World& world) {
  std::string command = asked;
  for (const CLI::App* sub : app.get_subcommands())
    if (asked.empty()) command = sub->get_name();
  check_alike(world.comm(), {{"the program", app.get_name()},
                             {"its version", std::string(version)},
                             {"the command", command}});
}

/// The flags and their values, given or not.
void add_flags(CLI::App& app, std::vector<Fact>& facts) {
  for (CLI::Option* option : app.get_options()) {
    const std::string name = option->get_name();
    if (contains(of_one_rank, name)) continue;
    const bool given = option->count() > 0;
    std::string value = given ? "given" : "";
    if (option->get_expected_max() > 0 && !contains(files_of_rank_0, name)) {
      option->capture_default_str();  // by now what the flag is, as parsed
      value = option->get_default_str();
      if (given && value.empty()) value = CLI::detail::join(option->results());
    }
    // Data may lie elsewhere on each node: the images themselves are compared later.
    if (name == "--data") value = value.substr(0, value.find(':'));
    facts.push_back({name, value.empty() && !given ? "not given" : value});
  }
  for (CLI::App* sub : app.get_subcommands()) add_flags(*sub, facts);
}

}  // namespace

int run(CLI::App& app, int argc, char** argv, const std::function<int(World&)>& body) {
  app.set_version_flag("--version", std::string(version), "print the version and end");
  set_help(app);
  refuse_flags_as_values(app);
  bool parsed = false;  // by a call before, on more ranks
  return lamina::run(argc, argv, [&](World& world) {
    check(lamina::detail::thread_ranks() == 0,
          "LAMINA_RANKS is for programs of one's own: start this one with mpirun");
    try {
      if (!std::exchange(parsed, true)) app.parse(argc, argv);
    } catch (const CLI::ParseError& e) {
      if (e.get_exit_code() == 0) {
        check_program(app, "help", world);
        if (world.rank() == 0) app.exit(e);
        return 0;
      }
      const std::string error = usage_error(app, e);
      World::say(world.leave(error, 2));
      return 2;
    }
    if (!world.late()) {  // those have the command line of rank 0
      check_program(app, "", world);
      std::vector<Fact> flags;
      add_flags(app, flags);
      check_alike(world.comm(), flags);
    }
    try {
      return body(world);
    } catch (const std::bad_alloc&) {
      throw Error("not enough memory: a smaller batch or image may fit");
    } catch (const std::length_error&) {  // more than a container can ever hold
      throw Error("not enough memory: a smaller batch or image may fit");
    }
  });
}

}  // namespace lamina::cli
