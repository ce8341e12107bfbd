// `lamina info`: what was built in, what was found.
#include "commands.hpp"
#include "flags.hpp"
#include "machine/cache.hpp"
#include "processors.hpp"
#include "session.hpp"

#include <lamina/base/threads.hpp>
#include <lamina/base/version.hpp>
#include <lamina/comm/mpi.hpp>
#include <lamina/comm/nccl.hpp>
#include <lamina/kernels/backends.hpp>
#include <lamina/network/agree.hpp>
#include <lamina/network/fusion.hpp>
#include <lamina/network/models.hpp>
#include <lamina/profile/counters.hpp>

#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

namespace lamina::cli {

namespace {

/// "4.089 GMAC", "416.520 kMAC".
std::string macs(double n) {
  return n >= 1e9   ? format("%.3f GMAC", n / 1e9)
         : n >= 1e6 ? format("%.3f MMAC", n / 1e6)
                    : format("%.3f kMAC", n / 1e3);
}

using Rows = std::vector<std::vector<std::string>>;

/// Of which the first `left` columns are words, and the others numbers.
void print_columns(const Rows& rows, std::size_t left) {
  std::vector<std::size_t> width(rows[0].size());
  for (const auto& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], row[i].size());
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string space(width[i] - row[i].size(), ' ');
      line += (i > 0 ? "  " : "") + (i < left ? row[i] + space : space + row[i]);
    }
    std::printf("%s\n", line.substr(0, line.find_last_not_of(' ') + 1).c_str());
  }
}

/// The layers of a model, their shapes, parameters and work, for one sample.
void print_model(const RunOptions& o) {
  const Network net = model_of(o);
  Rows rows = {{"layer", "type", "options", "output", "parameters", "forward"}};
  double parameters = 0, work = 0;
  for (const auto& v : net.graph()) {
    if (!v.layer) continue;
    const Cost cost = v.layer->cost(net.input_shapes(v, 1), {}, DType::f32);
    const Shape& y = v.shape;
    rows.push_back({v.name, std::string(v.layer->type()), v.layer->describe(),
                    y.h * y.w > 1 ? text(y.c, 'x', y.h, 'x', y.w) : text(y.c),
                    cost.parameters > 0 ? format("%.0f", cost.parameters) : "",
                    v.layer->multiplies() ? macs(cost.forward.flops / 2) : ""});
    parameters += cost.parameters;
    if (v.layer->multiplies()) work += cost.forward.flops / 2;
  }
  print_columns(rows, 3);
  const Shape x = net.sample();
  std::printf("%s: input %s, %.0f parameters (%.1f MB of f32), %s forward per image\n",
              o.model.c_str(), text(x.c, 'x', x.h, 'x', x.w).c_str(), parameters,
              parameters * 4 / 1e6, macs(work).c_str());
}

/// Which layers of a model are absorbed by the kernels of others, on the back end at hand.
void print_fused(const RunOptions& o) {
  const Network net = model_of(o);
  const auto backend = make_backend(o.backend, DType::f32);
  const Fusion fusion = plan_fusion(net, {.backend = backend});
  const auto& graph = net.graph();
  Rows rows = {{"layer", "type", "absorbs", "and adds"}};
  std::vector<std::string> absorbed(graph.size());
  std::size_t count = 0;
  for (std::size_t v = 0; v < graph.size(); ++v) {
    if (fusion.vertices[v].absorbed_by < 0) continue;
    const auto by = std::size_t(fusion.vertices[v].absorbed_by);
    absorbed[by] += (absorbed[by].empty() ? "" : ", ") + graph[v].name;
    ++count;
  }
  for (std::size_t v = 0; v < graph.size(); ++v) {
    const int added = fusion.vertices[v].added;
    if (!absorbed[v].empty())
      rows.push_back({graph[v].name, std::string(graph[v].layer->type()), absorbed[v],
                      added >= 0 ? graph[std::size_t(added)].name : ""});
  }
  if (count > 0) print_columns(rows, 4);
  std::printf("%s: of %zu layers %zu are absorbed by kernels of the back end %s\n", o.model.c_str(),
              graph.size() - 1, count, backend->name().c_str());
}

struct InfoOptions : RunOptions {
  bool machine = false, measure = false, fused = false;
};

/// "5 minutes old", as files go.
std::string age(double seconds) {
  const auto some = [](double n, const char* unit) {
    return format("%.0f %s%s old", n, unit, int(n) == 1 ? "" : "s");
  };
  return seconds < 120         ? "new"
         : seconds < 7200      ? some(std::floor(seconds / 60), "minute")
         : seconds < 2 * 86400 ? some(std::floor(seconds / 3600), "hour")
                               : some(std::floor(seconds / 86400), "day");
}

/// What the machine can do at most, as measured now or before.
void print_machine(const InfoOptions& o, const World& world) {
  expect_one_backend("--machine", world.comm(), o.backend, DType::f32);
  const auto backend = make_backend(o.backend, DType::f32);
  const Machine machine = cached_machine(world, *backend, o.measure);
  if (world.rank() != 0) return;
  const std::string file = lamina::detail::cache_file(world, *backend);
  struct stat status = {};
  const bool kept = !file.empty() && ::stat(file.c_str(), &status) == 0;
  std::printf("%s\ncache  %s%s\n", table(machine).c_str(), file.empty() ? "none" : file.c_str(),
              file.empty() ? ""
              : kept       ? (", " + age(std::difftime(std::time(nullptr), status.st_mtime)) +
                        "; --measure measures again")
                           .c_str()
                     : " could not be written");
}

/// What there is for GPUs.
std::string cuda_line() {
  if (!has_cuda()) return "not built in";
  try {
    return cuda_backend(0)->description();
  } catch (const Error& e) {
    return text("built in; ", e.what());
  }
}

int info(const InfoOptions& o, World& world) {
  take_processors(o.threads, world);
  check(!o.fused || !o.model.empty(), "--fused: expected --model NAME with it");
  check(o.model.empty() || !(o.machine || o.measure),
        "--model and --machine or --measure: expected one of the two");
  check(!o.model.empty() || (o.image_size == 0 && o.classes == 0),
        "--image-size and --classes: expected --model NAME with them");
  check(o.backend == "auto" || o.machine || o.measure || o.fused,
        "--backend: expected --machine, --measure, or --model NAME --fused with it");
  if (o.machine || o.measure) return print_machine(o, world), 0;
  const auto hosts = world.comm().all_gather_text(
      text(world.hosts()[std::size_t(world.rank())], ", device cpu, ", threads(),
           threads() == 1 ? " thread of " : " threads of ", processors(),
           processors() == 1 ? " processor" : " processors"));
  if (world.rank() != 0) return 0;
  if (!o.model.empty()) return o.fused ? print_fused(o) : print_model(o), 0;
  constexpr const char* absent = "not built in";
  std::printf("lamina %s\n", version);
  std::printf("reference  %s\n", reference_backend()->description().c_str());
  std::printf("onednn     %s\n", has_onednn() ? onednn_backend()->description().c_str() : absent);
  std::printf("cuda       %s\n", cuda_line().c_str());
  std::printf("mpi        %s\n", mpi_library().empty() ? absent : mpi_library().c_str());
  std::printf("nccl       %s\n", has_nccl() ? "built in" : absent);
  std::string why;
  const bool counts = open_counters(&why) != nullptr;
  std::printf("counters   %s\n", counts ? "cycles, instructions, last-level misses"
                                        : ("not available: " + why).c_str());
  for (std::size_t r = 0; r < hosts.size(); ++r)
    std::printf("rank %zu     %s\n", r, hosts[r].c_str());
  return 0;
}

}  // namespace

Command info_command(CLI::App& app) {
  auto o = std::make_shared<InfoOptions>();
  o->model.clear();
  CLI::App* sub =
      app.add_subcommand("info", "what was built in and found; the machine's ceilings; or a model");
  word(*sub, "--model", o->model, "NAME", "print this model's layers, parameters and work");
  count(*sub, "--image-size", o->image_size, 0, "height and width of its input; 0 = its own",
        65535);
  count(*sub, "--classes", o->classes, 0, "its outputs; 0 = its own");
  sub->add_flag("--fused", o->fused,
                "print which of its layers are absorbed by the kernels of others");
  sub->add_flag("--machine", o->machine,
                "print what this machine can do at most; measures it once");
  sub->add_flag("--measure", o->measure, "measure the machine again, and print that");
  word(*sub, "--backend", o->backend, "NAME", "whose kernels are measured, or absorb layers")
      ->capture_default_str();
  count(*sub, "--threads", o->threads, 0,
        "threads per rank; 0 = this rank's share of the processors", 4096);
  return {sub, [o](World& world) { return info(*o, world); }};
}

}  // namespace lamina::cli
