// Profiles as CSV: a line per row, for spreadsheets and scripts.
#include <lamina/base/file.hpp>
#include <lamina/profile/report.hpp>
#include <lamina/profile/roofline.hpp>

namespace lamina {

namespace {

/// A line in the making.
class CsvLine {
 public:
  /// Quoted where RFC 4180 asks for it.
  CsvLine& add(std::string_view s) {
    if (s.find_first_of(",\"\r\n") == std::string_view::npos) return put(s);
    std::string quoted = "\"";
    for (const char c : s) quoted += c == '"' ? "\"\"" : std::string(1, c);
    return put(quoted + '"');
  }
  CsvLine& add(double value) { return put(format("%.9g", value)); }
  /// Empty where there is none.
  CsvLine& add_if(bool there, double value) { return there ? add(value) : put(""); }

  std::string end() && { return std::move(line_) + '\n'; }

 private:
  CsvLine& put(std::string_view s) {
    if (!first_) line_ += ',';
    first_ = false;
    line_ += s;
    return *this;
  }

  std::string line_;
  bool first_ = true;
};

}  // namespace

void write_profile_csv(const std::string& path, const Profile& profile) {
  std::string out =
      "layer,type,split,pass,output,time_us,gflop,mbytes,ai,gflops,gbs,roof_gflops,pct_roof,bound,"
      "wasted_us,comm_us,exposed_us,late_us,transfer_us,comm_bytes,wire_bytes,alone_us,pred_us,"
      "algo,"
      "ws_mb,describe,min_us,max_us,slowest_rank,imbalance,step_min_us,step_median_us,step_std_us,"
      "cycles,"
      "instructions,llc_misses,dram_bytes,schema\n";
  const bool ceilings = profile.machine && has_ceilings(profile);
  for (const ProfileRow& r : profile.rows) {
    const bool work = r.work.flops > 0 || r.work.bytes > 0;
    const Roof top = ceilings ? roof(profile, r) : Roof();
    const Counts counts = r.counts.value_or(Counts());
    CsvLine line;
    line.add(r.name).add(r.type).add(r.split).add(name(r.pass));
    line.add(r.layer < 0 ? std::string() : r.output.text());
    line.add(r.time.mean * 1e6).add(r.work.flops / 1e9).add(r.work.bytes / 1e6);
    line.add(r.work.intensity());
    line.add(r.flops_per_second() / 1e9).add(r.bytes_per_second() / 1e9);
    line.add_if(ceilings && work, top.flops / 1e9).add_if(ceilings && work, top.fraction * 100);
    line.add(ceilings && r.seconds() > 0 ? name(top.bound) : "").add_if(ceilings, top.wasted * 1e6);
    line.add(r.comm.mean * 1e6).add(r.exposed.mean * 1e6).add(r.late.mean * 1e6);
    line.add(r.transfer.mean * 1e6).add(r.comm_bytes).add(r.wire_bytes);
    line.add_if(r.alone.max > 0, r.alone.mean * 1e6).add_if(r.predicted > 0, r.predicted * 1e6);
    line.add(r.algorithm).add(r.workspace / 1e6).add(r.describe);
    line.add(r.time.min * 1e6).add(r.time.max * 1e6).add(r.time.slowest).add(r.time.imbalance());
    line.add(r.step_min * 1e6).add(r.step_median * 1e6).add(r.step_std * 1e6);
    for (const double count :
         {counts.cycles, counts.instructions, counts.misses, counts.dram_bytes})
      line.add_if(count >= 0, count);
    line.add(text(profile_schema, ' ', profile_schema_version));
    out += std::move(line).end();
  }
  write_file(path, out);
}

}  // namespace lamina
