#include "options.hpp"

#include <lamina/base/nearest.hpp>
#include <lamina/base/version.hpp>
#include <lamina/network/models.hpp>

#include <cstdio>
#include <vector>

namespace lamina::cli {

namespace {

/// The known spellings of all flags of an app and its chosen subcommands.
std::vector<std::string> flags_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  for (const CLI::App* sub : app.get_subcommands()) {
    const auto more = flags_of(*sub);
    names.insert(names.end(), more.begin(), more.end());
  }
  return names;
}

std::string usage_error(const CLI::App& app, const CLI::ParseError& error) {
  std::vector<std::string> unknown = app.remaining(true);
  if (dynamic_cast<const CLI::ExtrasError*>(&error) && !unknown.empty()) {
    const std::string flag = unknown[0].substr(0, unknown[0].find('='));
    const auto known = flags_of(app);
    const auto guess = nearest(flag, known);
    return text(flag.starts_with('-') ? "unknown flag " : "unexpected argument ", flag,
                guess.empty() ? "" : text(" (did you mean ", guess, "?)"), ": see --help");
  }
  std::string what = error.what();
  for (char& c : what)
    if (c == '\n') c = ' ';
  return what + ": see --help";
}

}  // namespace

std::int64_t RunOptions::batch(int ranks, std::int64_t fallback) const {
  check(global_batch == 0 || batch_size == 0,
        "--batch-size (per rank) and --global-batch exclude each other");
  if (global_batch > 0) return global_batch;
  const std::int64_t size = batch_size > 0 ? batch_size : fallback;
  return scaling == "strong" ? size : size * ranks;
}

void add_model_flags(CLI::App& app, RunOptions& o) {
  app.add_option("--model", o.model, "a model's name; --list-models prints them")
      ->capture_default_str();
  app.add_flag("--list-models", o.list_models, "print the models and end");
  app.add_option("--image-size", o.image_size, "height and width of the input; 0 = the model's own")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--classes", o.classes, "outputs of the model; 0 = the data set's classes")
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--global-norm", o.global_norm, "batch norm over the global batch, not per rank");
  app.add_option("--label-smoothing", o.label_smoothing, "of the loss")
      ->check(CLI::Range(0.0, 0.99));
}

void add_run_flags(CLI::App& app, RunOptions& o) {
  app.add_option("--batch-size", o.batch_size, "samples per rank (with --scaling strong: in all)")
      ->check(CLI::PositiveNumber);
  app.add_option("--global-batch", o.global_batch, "samples over all ranks")
      ->check(CLI::PositiveNumber);
  app.add_option("--scaling", o.scaling,
                 "what --batch-size counts: weak = per rank, strong = in all")
      ->check(CLI::IsMember({"weak", "strong"}))
      ->capture_default_str();
  app.add_option("--data", o.data, "synthetic, mnist:DIR, cifar10:DIR, cifar100:DIR or images:DIR")
      ->capture_default_str();
  app.add_option("--dtype", o.dtype, "f32 or f64 (reference back end only)")->capture_default_str();
  app.add_option("--device", o.device, "auto, cpu or cuda")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  app.add_option("--backend", o.backend, "auto, reference, onednn or cuda")->capture_default_str();
  app.add_option("--comm", o.comm, "auto, mpi, nccl, or none: no communication, for timing only")
      ->check(CLI::IsMember({"auto", "mpi", "nccl", "none"}))
      ->capture_default_str();
  app.add_option("--bucket-mb", o.bucket_mb, "size of a gradient bucket in MB; 0 = one per layer")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--first-bucket-mb", o.first_bucket_mb, "size of the first bucket, near the loss")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--threads", o.threads,
                 "threads per rank; 0 = this rank's share of the processors")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--seed", o.seed, "of weights, data order, augmentation and dropout")
      ->capture_default_str();
}

void add_optimizer_flags(CLI::App& app, RunOptions& o) {
  app.add_option("--optimizer", o.optimizer, "sgd, adam, adamw or lars")
      ->check(CLI::IsMember({"sgd", "adam", "adamw", "lars"}))
      ->capture_default_str();
  app.add_option("--lr", o.lr,
                 "learning rate; by default 0.01 (sgd), 0.001 (adam, adamw), 0.1 (lars)")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--momentum", o.momentum, "of sgd and lars")
      ->check(CLI::Range(0.0, 0.9999))
      ->capture_default_str();
  app.add_flag("--nesterov", o.nesterov, "Nesterov momentum");
  app.add_option("--weight-decay", o.weight_decay, "L2 penalty; decoupled with adamw")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--decay", o.decay, "what decays: all, or weights = not biases and batch norm")
      ->check(CLI::IsMember({"all", "weights"}))
      ->capture_default_str();
  app.add_option("--schedule", o.schedule,
                 "constant, step:EPOCHS,FACTOR, multistep:EPOCH,...,FACTOR, poly:POWER or cosine")
      ->capture_default_str();
  app.add_option("--warmup-epochs", o.warmup_epochs, "linear warm-up of the learning rate")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--clip-norm", o.clip_norm, "scale gradients down to this norm; 0 = never")
      ->check(CLI::NonNegativeNumber);
}

void add_profile_flags(CLI::App& app, RunOptions& o) {
  app.add_option("--json", o.json, "write the per-layer profile as JSON");
  app.add_option("--csv", o.csv, "write the per-layer profile as CSV");
  app.add_flag("--wide", o.wide, "table with a row per pass and all columns");
  app.add_option("--top", o.top, "only the N most expensive layers of the table; 0 = all")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--sort", o.sort, "rows of the table by order, time or name")
      ->check(CLI::IsMember({"order", "time", "name"}))
      ->capture_default_str();
}

int run(CLI::App& app, int argc, char** argv, const std::function<int(World&)>& body) {
  app.set_version_flag("--version", std::string(version));
  return lamina::run(argc, argv, [&](World& world) {
    try {
      app.parse(argc, argv);
    } catch (const CLI::ParseError& e) {
      if (e.get_exit_code() == 0) {
        if (world.rank() == 0) app.exit(e);
        return 0;
      }
      const std::string error = usage_error(app, e);
      World::say(world.leave(error, 2));
      return 2;
    }
    return body(world);
  });
}

}  // namespace lamina::cli
