// `lamina report`: makes the report of a profile anew, or compares two.
#include "commands.hpp"
#include "flags.hpp"
#include "report/compare.hpp"

#include <lamina/profile/report.hpp>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace lamina::cli {

namespace {

struct ReportOptions {
  std::vector<std::string> files;
  std::string folder = "report";
  int top = 10;
};

/// What a comparison had first may be nowhere but in its folder, from where the next one takes it
/// away, and there with what it had last.
void check_kept(const std::string& file, const std::string& folder) {
  std::error_code error;
  check(!std::filesystem::equivalent(file, folder + "/before.json", error), "report: ", file,
        " lies in --report ", folder, ", and would be lost: expected another folder");
}

int report(const ReportOptions& o, const World& world) {
  if (world.rank() != 0) return 0;
  for (const std::string& file : o.files) check_kept(file, o.folder);
  check(!o.files.empty() && o.files.size() <= 2,
        "report: expected one profile, or two to compare, got ", o.files.size(), " files");
  const Profile profile = read_profile_json(o.files[0]);
  if (o.files.size() == 1) {
    for (const std::string& path : write_report(o.folder, profile)) std::puts(path.c_str());
    return 0;
  }
  const Profile other = read_profile_json(o.files[1]);
  const auto paths = write_report(o.folder, profile, &other);
  std::fputs(lamina::detail::comparison(profile, other, o.top).c_str(), stdout);
  for (const std::string& path : paths) std::puts(path.c_str());
  return 0;
}

}  // namespace

Command report_command(CLI::App& app) {
  auto o = std::make_shared<ReportOptions>();
  CLI::App* sub =
      app.add_subcommand("report", "the report of a profile, or of two compared, as a page");
  sub->add_option("PROFILE", o->files, "profile.json, and another one to compare it with")
      ->type_name("");
  word(*sub, "--report", o->folder, "DIR", "where to write it")->capture_default_str();
  count(*sub, "--top", o->top, 0, "differences to print; 0 = none")->capture_default_str();
  return {sub, [o](World& world) { return report(*o, world); }};
}

}  // namespace lamina::cli
