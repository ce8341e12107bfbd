// `lamina resize`: asks a running job to go on with more or fewer ranks.
#include "commands.hpp"
#include "elastic.hpp"
#include "flags.hpp"

#include <cstdio>
#include <memory>

namespace lamina::cli {

namespace {

struct ResizeOptions {
  std::string job;
  int ranks = 0;
};

}  // namespace

Command resize_command(CLI::App& app) {
  auto o = std::make_shared<ResizeOptions>();
  CLI::App* sub = app.add_subcommand("resize", "ask a training to go on with more or fewer ranks");
  sub->add_option("JOB", o->job, "the socket that the training's preamble names")
      ->type_name("")
      ->required();
  count(*sub, "RANKS", o->ranks, 1, "how many it goes on with")->type_name("")->required();
  return {sub, [o](World& world) {
            if (world.rank() == 0)
              std::printf("%s goes on with %s\n", o->job.c_str(),
                          ask_job(o->job, o->ranks).substr(3).c_str());
            return 0;
          }};
}

}  // namespace lamina::cli
