// `lamina info`: what was built in, what was found.
#include "commands.hpp"
#include "session.hpp"

#include <lamina/base/version.hpp>
#include <lamina/comm/mpi.hpp>
#include <lamina/comm/nccl.hpp>
#include <lamina/kernels/backends.hpp>
#include <lamina/kernels/threads.hpp>
#include <lamina/network/models.hpp>

#include <cstdio>
#include <memory>

namespace lamina::cli {

namespace {

/// The layers of a model, their shapes, parameters and work, for one sample.
void print_model(const RunOptions& o) {
  Shape input = {};
  if (o.image_size > 0) {
    input = make_model(o.model).sample();
    input.h = input.w = o.image_size;
  }
  const Network net = make_model(o.model, {.classes = o.classes, .input = input});
  double parameters = 0, flops = 0;
  std::printf("%-28s %-20s %-22s %14s %12s %12s\n", "layer", "type", "options", "output",
              "parameters", "forward MMAC");
  for (const auto& v : net.graph()) {
    if (!v.layer) continue;
    const Cost cost = v.layer->cost(net.input_shapes(v, 1), {}, DType::f32);
    const bool multiplies = cost.weight_grad.flops > 0;  // convolution or linear: 1 MAC = 2 FLOP
    std::printf("%-28s %-20s %-22s %14s %12.0f %12.3f\n", v.name.c_str(),
                std::string(v.layer->type()).c_str(), v.layer->describe().c_str(),
                text(v.shape.c, 'x', v.shape.h, 'x', v.shape.w).c_str(), cost.parameters,
                multiplies ? cost.forward.flops / 2e6 : 0);
    parameters += cost.parameters;
    if (multiplies) flops += cost.forward.flops;
  }
  std::printf("%s: input %dx%dx%d, %.0f parameters (%.1f MB of f32), %.3f GMAC forward per image\n",
              o.model.c_str(), int(net.sample().c), int(net.sample().h), int(net.sample().w),
              parameters, parameters * 4 / 1e6, flops / 2e9);
}

int info(const RunOptions& o, World& world) {
  set_threads(default_threads(world.local_size()));
  const auto hosts =
      world.comm().all_gather_text(text(world.hosts()[std::size_t(world.rank())], ", device cpu, ",
                                        threads(), " threads of ", processors(), " processors"));
  if (world.rank() != 0) return 0;
  if (!o.model.empty()) return print_model(o), 0;
  constexpr const char* absent = "not built in";
  std::printf("lamina %s\n", version);
  std::printf("reference  %s\n", reference_backend()->description().c_str());
  std::printf("onednn     %s\n", has_onednn() ? onednn_backend()->description().c_str() : absent);
  std::printf("cuda       %s\n", has_cuda() ? cuda_backend(0)->description().c_str() : absent);
  std::printf("mpi        %s\n", mpi_library().empty() ? absent : mpi_library().c_str());
  std::printf("nccl       %s\n", has_nccl() ? "built in" : absent);
  for (std::size_t r = 0; r < hosts.size(); ++r)
    std::printf("rank %zu     %s\n", r, hosts[r].c_str());
  return 0;
}

}  // namespace

Command info_command(CLI::App& app) {
  auto o = std::make_shared<RunOptions>();
  o->model.clear();
  CLI::App* sub =
      app.add_subcommand("info", "what was built in and found; or the layers of a model");
  sub->add_option("--model", o->model, "print this model's layers, parameters and work");
  sub->add_option("--image-size", o->image_size, "height and width of its input")
      ->check(CLI::PositiveNumber);
  sub->add_option("--classes", o->classes, "its outputs")->check(CLI::PositiveNumber);
  return {sub, [o](World& world) { return info(*o, world); }};
}

}  // namespace lamina::cli
