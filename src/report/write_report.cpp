// A report's folder: the page, and the files that go with it.
#include "report/drawings/drawings.hpp"

#include <lamina/base/file.hpp>
#include <lamina/profile/report.hpp>
#include <lamina/profile/roofline.hpp>

#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace lamina {

namespace {

void make_folder(const std::string& folder) {
  for (std::size_t end = folder.find('/', 1);; end = folder.find('/', end + 1)) {
    const std::string part = folder.substr(0, end);
    struct stat status = {};
    if (::stat(part.c_str(), &status) == 0)
      check(S_ISDIR(status.st_mode), part, ": is a file: expected a folder for the report");
    else
      check(::mkdir(part.c_str(), 0777) == 0, part,
            ": cannot make the folder of the report: ", std::strerror(errno));
    if (end == std::string::npos) break;
  }
}

}  // namespace

std::vector<std::string> write_report(const std::string& folder, const Profile& profile,
                                      const Profile* other) {
  check(!folder.empty(), "a report needs a folder");
  const Profile& last = other ? *other : profile;
  const detail::DrawingOptions alone = {.standalone = true};
  // What may fail for the profile's sake comes before the first file; the page comes last, so that
  // what it shows is there.
  const std::vector<std::pair<const char*, std::string>> contents = {
      {"roofline.svg",
       has_ceilings(profile) || has_ceilings(last) ? roofline_svg(profile, other) : ""},
      {"communication.svg", detail::draw_communication(profile, other, alone)},
      {"timeline.svg", detail::draw_timeline(last, alone)},
      {"memory.svg", detail::draw_memory(last, alone)},
      {"ranks.svg", detail::draw_ranks(last, alone)},
      {"index.html", report_html(profile, other)}};

  make_folder(folder);
  std::vector<std::string> paths;
  const auto path = [&](const char* file) { return paths.emplace_back(text(folder, '/', file)); };
  write_profile_json(path("profile.json"), last);
  if (other)
    write_profile_json(path("before.json"), profile);
  else
    std::remove(text(folder, "/before.json").c_str());
  write_profile_csv(path("profile.csv"), last);
  write_trace(path("trace.json"), last);
  for (const auto& [file, content] : contents)
    if (content.empty())
      std::remove(text(folder, '/', file).c_str());
    else
      write_file(path(file), content);
  return paths;
}

}  // namespace lamina
