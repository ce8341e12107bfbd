// The fastest plan, found and timed on the ranks that are there: start it with mpirun -n 2, or
// -n 4. The first run measures, and writes what it decided to fastest_plan.json; the next ones on
// as many ranks read that. The profile at the end has what was predicted of each layer beside what
// was measured.
#include <lamina/comm/alike.hpp>
#include <lamina/lamina.hpp>
#include <lamina/plan/add_predicted.hpp>
#include <lamina/train/choose_plan.hpp>

#include <filesystem>
#include <iostream>

int main(int argc, char** argv) {
  return lamina::run(argc, argv, [](lamina::World& world) {
    const char* file = "fastest_plan.json";
    const lamina::Network net = lamina::make_model("lenet");
    const lamina::Optimizer optimizer = lamina::SGD{.rate = 0.05, .momentum = 0.9};
    lamina::TrainerOptions options{.batch = 64};

    // What rank 0 sees is what counts: it alone reads and writes the file.
    const std::string kept = lamina::on_first(world.comm(), [&] {
      return std::filesystem::exists(file) ? plan_json(lamina::read_plan(file)) : std::string();
    });
    lamina::Plan plan = kept.empty() ? lamina::Plan() : lamina::parse_plan(kept);
    if (!kept.empty() && plan.ranks == world.size()) {
      const auto decisions = decide(plan, net, options.batch);
      options.splits = splits_of(decisions), options.recompute = recompute_of(decisions);
      options.shard_optimizer = plan.shard_optimizer;
      options.micro_batch = plan.micro_batches > 1 ? options.batch / plan.micro_batches : 0;
    } else {
      const lamina::ChosenPlan chosen = lamina::plan(net, world, optimizer, options);
      plan = chosen.plan, options = chosen.training;
      if (world.rank() == 0) write_plan(file, plan);
    }

    lamina::Trainer trainer(net, world, optimizer, options);
    const auto data = lamina::made_up_samples(net, options.batch);
    lamina::Loader loader = trainer.loader(*data, true);
    const lamina::Batch& batch = loader.next();
    lamina::Profile profile =
        profile_steps(trainer.network(), trainer.stream(), trainer.ranks(), optimizer.rule(), {},
                      [&] { trainer.step(batch, loader.batches(), 1000); });
    add_predicted(profile, trainer.network(), plan);
    if (world.rank() == 0) std::cout << table(profile, {.width = 120});
    return 0;
  });
}
