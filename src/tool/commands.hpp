// The subcommands of `lamina`: each registers its flags and gives what to run on all ranks.
#pragma once

#include "options.hpp"

#include <functional>

namespace lamina::cli {

struct Command {
  CLI::App* app;
  std::function<int(World&)> run;
};

Command train_command(CLI::App& app);
Command launch_command(CLI::App& app);
Command plan_command(CLI::App& app);
Command report_command(CLI::App& app);
Command resize_command(CLI::App& app);
Command info_command(CLI::App& app);

}  // namespace lamina::cli
