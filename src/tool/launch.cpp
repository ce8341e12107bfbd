// `lamina launch`: runs a program under mpirun, and goes on without the ranks that are lost.
#include "commands.hpp"
#include "flags.hpp"
#include "launcher.hpp"

#include <memory>

namespace lamina::cli {

namespace {

int launch(const LaunchOptions& o) {
  check(!lamina::detail::launched(),
        "launch: starts mpirun by itself: expected no mpirun around it");
  check(!o.program.empty(),
        "launch: expected a program behind --, as in: lamina launch --max 4 -- ", "lamina train");
  return Launcher(o).run();
}

}  // namespace

Command launch_command(CLI::App& app) {
  auto o = std::make_shared<LaunchOptions>();
  CLI::App* sub = app.add_subcommand(
      "launch", "run a program under mpirun, and go on without the ranks that are lost");
  count(*sub, "--min", o->min, 1, "give up where fewer ranks are left")->capture_default_str();
  count(*sub, "--max", o->max, 1, "ranks; by default one per processor, or per slot of the hosts");
  count(*sub, "--snapshot-every", o->every, 1,
        "steps between two snapshots; by default as many as make them take 1 % of the time");
  number(*sub, "--regrow", o->regrow,
         "seconds after which the slot of a lost rank is used again, or a lost host asked; 0 = at "
         "once")
      ->capture_default_str();
  word(*sub, "--hosts", o->hosts, "HOST:SLOTS,...|FILE",
       "where ranks run, this host among them; by default here");
  word(*sub, "--mpirun", o->mpirun, "COMMAND", "with flags of its own, if need be")
      ->capture_default_str();
  sub->add_option("PROGRAM", o->program, "behind --: what to run, and its arguments")
      ->type_name("");
  return {sub, [o](World&) { return launch(*o); }};
}

}  // namespace lamina::cli
