// Profiles as CSV: a line per row, for spreadsheets and scripts.
#include "file.hpp"

#include <lamina/profile/report.hpp>

namespace lamina {

namespace {

/// Quoted where RFC 4180 asks for it.
std::string quoted(const std::string& s) {
  if (s.find_first_of(",\"\r\n") == std::string::npos) return s;
  std::string q = "\"";
  for (const char c : s) q += c == '"' ? "\"\"" : std::string(1, c);
  return q + '"';
}

}  // namespace

void write_profile_csv(const std::string& path, const Profile& profile) {
  std::string out =
      "layer,type,split,pass,time_us,gflop,mbytes,ai,gflops,gbs,comm_us,exposed_us,comm_bytes,algo,"
      "ws_mb,describe,min_us,max_us,slowest_rank,imbalance,step_min_us,step_median_us,step_std_us,"
      "schema\n";
  const std::string schema = text(profile_schema, ' ', profile_schema_version);
  for (const ProfileRow& r : profile.rows) {
    for (const auto& s : {r.name, r.type, r.split, std::string(name(r.pass))})
      append(out, quoted(s) + ',');
    for (const double v :
         {r.time.mean * 1e6, r.work.flops / 1e9, r.work.bytes / 1e6, r.work.intensity(),
          r.flops_per_second() / 1e9, r.bytes_per_second() / 1e9, r.comm.mean * 1e6,
          r.exposed.mean * 1e6, r.comm_bytes})
      append(out, format("%.9g,", v));
    append(out, text(quoted(r.algorithm), ',', format("%.9g", r.workspace / 1e6), ',',
                     quoted(r.describe), ','));
    append(out, format("%.9g,%.9g,%d,%.9g,", r.time.min * 1e6, r.time.max * 1e6, r.time.slowest,
                       r.time.imbalance()));
    for (const double v : {r.step_min, r.step_median, r.step_std})
      append(out, format("%.9g,", v * 1e6));
    append(out, schema + '\n');
  }
  detail::write_file(path, out);
}

}  // namespace lamina
