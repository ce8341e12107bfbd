// A split per layer, by hand: start it with mpirun -n 2, or -n 4. The first convolution is cut by
// rows, the linear layers by features, all else by samples. What has to move between unlike splits
// moves by itself, and the losses are those of one rank.
#include <lamina/lamina.hpp>

#include <iostream>

int main(int argc, char** argv) {
  return lamina::run(argc, argv, [](lamina::World& world) {
    constexpr std::int64_t batch = 32;  // over all ranks
    const int ranks = world.size();

    lamina::Network net({.c = 1, .h = 28, .w = 28});
    net.add<lamina::Conv2D>({.channels = 16, .kernel = 5, .pad = 2}, "conv1");
    net.add<lamina::ReLU>({}, "relu1");
    net.add<lamina::MaxPool2D>({.window = 2}, "pool1");
    net.add<lamina::Linear>({.features = 256}, "fc1");
    net.add<lamina::ReLU>({}, "relu2");
    net.add<lamina::Linear>({.features = 10}, "fc2");
    net.add<lamina::SoftmaxCrossEntropy>({}, "loss");

    lamina::Plan plan{.ranks = ranks};        // all by samples, unless a rule says otherwise
    plan.split("conv1", {.height = ranks});   // halos of two rows travel
    plan.split("fc1", {.channel = ranks});    // each rank makes some of the features,
    plan.split("relu2", {.channel = ranks});  // keeps them to itself,
    plan.split("fc2", {.input = ranks});      // and adds up what they say of all classes
    const auto decisions = decide(plan, net, batch);  // throws where a split is impossible

    lamina::Trainer trainer(net, world, lamina::SGD{.rate = 0.05, .momentum = 0.9},
                            {.batch = batch, .splits = splits_of(decisions)});
    if (world.rank() == 0) std::cout << plan_table(decisions, trainer.network());

    const auto data =
        lamina::synthetic({.limit = 640, .channels = 1, .height = 28, .width = 28, .classes = 10});
    for (const lamina::Epoch& epoch : trainer.fit(*data, {.epochs = 3}))
      if (world.rank() == 0) std::cout << epoch;
    return 0;
  });
}
