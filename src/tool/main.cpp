// The command `lamina`.
#include "commands.hpp"

int main(int argc, char** argv) {
  CLI::App app("Lamina: distributed training of convolutional networks, layer by layer", "lamina");
  app.require_subcommand(1);
  using namespace lamina::cli;
  const Command commands[] = {train_command(app), launch_command(app), resize_command(app),
                              plan_command(app),  report_command(app), info_command(app)};
  return run(app, argc, argv, [&](lamina::World& world) {
    for (const Command& command : commands)
      if (command.app->parsed()) return command.run(world);
    return 2;
  });
}
