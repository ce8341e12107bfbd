#include "validate.hpp"

#include "session.hpp"
#include "terminal.hpp"

#include <lamina/base/naming.hpp>
#include <lamina/base/version.hpp>
#include <lamina/kernels/backends.hpp>
#include <lamina/train/choose_plan.hpp>

#include <cstdio>

namespace lamina::cli {

int validate(RunOptions o, const ValidateOptions& how, World& world) {
  o.lr = 1e-6;  // weights stay as good as they are, however many steps there are
  const Network net = model_of(o);
  const std::int64_t batch = o.batch(world.size(), 32);
  const Optimizer optimizer = make_optimizer(o);
  const TrainerOptions training = trainer_options(o, batch, {});
  PlaceOptions placing = placing_of(training);
  placing.backend = make_backend(o.backend, training.dtype.compute);
  PlannerOptions planner = how.planner;
  planner.buys = false;
  const Calibration calibration =
      calibrate(net, placing, optimizer.rule(), world, {.planner = planner});
  const auto data = made_up_samples(net, batch);
  Validation v = validate_plans(net, *data, world, optimizer, training, calibration, how);
  v.model = o.model;
  if (world.rank() != 0) return 0;
  const std::string head =
      remark(text("lamina plan ", version, ": ", v.model, ", batch ", v.batch, ", ", v.ranks,
                  " ranks on ", v.nodes, v.nodes == 1 ? " node" : " nodes", ", ",
                  placing.backend->description())) +
      remark(text(v.plans.size(), " plans; contention ",
                  format("%.2f", calibration.cluster.contention), ", across ",
                  format("%.1f us, %.3f GB/s", 1e6 * calibration.cluster.across.latency,
                         1e-9 * calibration.cluster.across.bandwidth)));
  std::fputs((head + validation_table(v, {.width = table_width(), .wide = o.wide})).c_str(),
             stdout);
  std::fflush(stdout);
  if (!o.json.empty())
    naming(
        "--json", [&] { write_validation_json(o.json, v); }, " ");
  return 0;
}

}  // namespace lamina::cli
