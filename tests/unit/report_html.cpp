// The report's page: complete, self-contained, and with the right numbers in it.
#include "catch.hpp"
#include "report/compare.hpp"
#include "report/page/sections.hpp"
#include "unit/profile_made.hpp"

#include <lamina/profile/report.hpp>

#include <algorithm>

using namespace lamina;
using namespace lamina::test;
using lamina::detail::Change;

namespace {

bool has(const std::string& page, const std::string& words) {
  return page.find(words) != std::string::npos;
}

std::size_t count(const std::string& page, const std::string& words) {
  std::size_t n = 0;
  for (std::size_t at = 0; (at = page.find(words, at)) != std::string::npos; at += words.size())
    ++n;
  return n;
}

/// The row of a table that has these attributes.
std::string row_with(const std::string& page, const std::string& attributes) {
  const std::size_t begin = page.find("<tr " + attributes);
  REQUIRE(begin != std::string::npos);
  return page.substr(begin, page.find("</tr>", begin) - begin);
}

/// The text of a row, a blank between cells.
std::string words_of(const std::string& html) {
  std::string out;
  bool tag = false;
  for (const char c : html) {
    if (c == '<') tag = true, out += out.ends_with(' ') ? "" : " ";
    if (!tag) out += c;
    if (c == '>') tag = false;
  }
  return out;
}

void check_page(const std::string& page) {
  CHECK(page.starts_with("<!doctype html>"));
  CHECK(page.ends_with("</html>\n"));
  CHECK(has(page, "default-src 'none'"));
  CHECK(count(page, "<script") == 1);
  CHECK(count(page, "<section") == count(page, "</section>"));
  CHECK(count(page, "<tr") == count(page, "</tr>"));
  // Nothing that a browser would fetch; a drawing names its namespace, which is no address.
  for (const char* fetched : {"src=", "@import", "<link rel=\"stylesheet", "fetch(",
                              "XMLHttpRequest", "href=\"http", "//cdn"})
    CHECK_FALSE(has(page, fetched));
  CHECK(count(page, "url(") == count(page, "url(#"));  // patterns of the page's own
  std::string rest = page;
  const std::string space = "\"http://www.w3.org/2000/svg\"";
  for (std::size_t at; (at = rest.find(space)) != std::string::npos;) rest.erase(at, space.size());
  CHECK_FALSE(has(rest, "http://"));
  CHECK_FALSE(has(rest, "https://"));
}

}  // namespace

TEST_CASE("a report is one page that fetches nothing", "[report]") {
  check_page(report_html(made_profile_on_machine(2)));
  const Profile before = made_profile_on_machine(2), after = made_profile_on_machine();
  check_page(report_html(before, &after));
}

TEST_CASE("a report is made of whatever a profile lacks", "[report]") {
  check_page(report_html(Profile{}));
  check_page(report_html(made_profile()));
  Profile p = made_profile_on_machine(2);
  p.timeline.clear(), p.layer_memory.clear(), p.hosts.clear(), p.layers.clear();
  p.clean = {}, p.machine->comm.clear(), p.command.clear();
  check_page(report_html(p));
  p.dtype = "f64", p.machine->compute.clear();  // a machine, but no roofs
  check_page(report_html(p));
  CHECK(has(report_html(p), "ceilings were not measured"));
  CHECK_FALSE(has(report_html(p), "% of roof"));
  const Profile nothing;
  check_page(report_html(p, &nothing));
}

TEST_CASE("names cannot break a report", "[report]") {
  Profile p = made_profile_on_machine(2);
  const std::string bad = "<script>alert(1)</script>\"'&";
  p.model = p.command = p.backend = p.version = p.optimizer = bad;
  p.hosts = {bad, bad}, p.machine->cpu = p.machine->host = p.machine->backend = bad;
  for (ProfileRow& r : p.rows)
    r.name = r.type = r.describe = r.split = r.algorithm = bad + std::to_string(r.layer);
  for (LayerMemory& m : p.layer_memory) m.name = m.type = bad;
  for (std::string& name : p.layers) name = bad;
  for (ComputeCeiling& c : p.machine->compute) c.name = bad;
  for (MemoryCeiling& c : p.machine->memory) c.level = bad;
  const Profile other = made_profile(2);
  for (const std::string& page : {report_html(p), report_html(p, &other), report_html(other, &p)}) {
    check_page(page);
    CHECK_FALSE(has(page, "<script>alert"));
    CHECK_FALSE(has(page, "alert(1)</script>\""));
    CHECK(has(page, "&lt;script&gt;alert(1)&lt;/script&gt;"));
  }
}

TEST_CASE("a row of a report has the row's numbers", "[report]") {
  const std::string page = report_html(made_profile_on_machine(2));
  // relu1 forward: 6.4 MB at 20 GB/s are 320 us, so that 300 us are above the roof by 6.7 %.
  const std::string relu = words_of(row_with(page, "data-row=\"3\""));
  INFO(relu);
  for (const char* cell : {" relu1 ", " ReLU ", " forward ", " memory ", " 106.7 ", " 300.0 "})
    CHECK(has(relu, cell));
  // relu1 input_grad: 450 us, of which 130 are wasted; 7.5 % of 6 ms.
  const std::string grad = words_of(row_with(page, "data-row=\"4\""));
  for (const char* cell : {" 71.1 ", " 130.0 ", " 450.0 ", " 7.50 "}) CHECK(has(grad, cell));
  // conv1 weight_grad: of 100 us exposed, 60 are for late ranks and 30 for transfer, so that 910 of
  // 1000 are hidden; alone 0.9 of 1200.25 us.
  const std::string conv = words_of(row_with(page, "data-row=\"1\""));
  for (const char* cell :
       {" 1000.0 ", " 100.0 ", " 60.0 ", " 30.0 ", " 910.0 ", " 1.11 ", " 1.500 "})
    CHECK(has(conv, cell));
  // Ranked by wasted time: conv1 forward, which waits for nothing, after its weight gradient.
  CHECK(page.find("<tr data-row=\"1\"") < page.find("<tr data-row=\"0\""));
  CHECK(page.find("<tr data-row=\"4\"") < page.find("<tr data-row=\"3\""));
}

TEST_CASE("predictions and counters stand in a report where there are any", "[report]") {
  Profile p = made_profile_on_machine();
  CHECK_FALSE(has(report_html(p), ">predicted"));
  CHECK_FALSE(has(report_html(p), "instr./cycle"));
  p.rows[4].predicted = 540e-6;  // measured: 450 us
  p.rows[4].counts = Counts{1e6, 2.5e6, -1, -1};
  const std::string page = report_html(p);
  CHECK(has(page, ">predicted"));
  CHECK(has(page, "instr./cycle"));
  CHECK_FALSE(has(page, "DRAM MB"));
  const std::string row = words_of(row_with(page, "data-row=\"4\""));
  for (const char* cell : {" 540.0 ", " +20.0 ", " 2.50 "}) CHECK(has(row, cell));
}

TEST_CASE("runs are compared by layer and pass", "[report]") {
  const Profile before = made_profile_on_machine();
  Profile after = before;
  after.rows.erase(after.rows.begin() + 2);                // conv1 update is gone
  after.rows[2].time.mean = 330e-6;                        // relu1 forward: + 30 us, + 10 %
  after.rows[0].time.mean = 1000.25e-6;                    // conv1 forward: - 200 us
  after.rows[1].name = "conv0";                            // conv1 weight_grad has another name
  std::reverse(after.rows.begin(), after.rows.end() - 1);  // order does not matter
  const std::vector<Change> all = detail::changes(before, after);
  REQUIRE(all.size() == before.rows.size() + 1);
  CHECK(all[0].any().name == "conv1");
  CHECK(all[0].after == nullptr);
  CHECK(all[0].difference() == Approx(-1200.25e-6));
  CHECK(all[1].any().name == "conv0");
  CHECK(all[1].before == nullptr);
  CHECK(all[2].difference() == Approx(-200e-6));
  CHECK(all[2].both());
  CHECK(all[3].relative() == Approx(0.1));
  CHECK(all[3].before->pass == Pass::forward);
  CHECK(all[4].any().pass == Pass::update);
  CHECK(all[4].after == nullptr);
  CHECK(all.back().difference() == 0);

  const std::string page = report_html(before, &after);
  CHECK(has(page, "only before"));
  CHECK(has(page, "only after"));
  const auto row = text("data-row=\"", all[3].after - after.rows.data(), "\" data-before=\"3\"");
  const std::string relu = words_of(row_with(page, row));
  for (const char* cell : {" 300.0 ", " 330.0 ", " +30.0 ", " +10.0 "}) CHECK(has(relu, cell));

  const std::string table = detail::comparison(before, after, 3);
  CHECK(has(table, "gone"));
  CHECK(has(table, "new"));
  CHECK(has(table, "-200.0"));
  CHECK_FALSE(has(table, "+30.0"));
  CHECK(has(table, text('(', all.size() - 3, " more)")));
}

TEST_CASE("unlike runs are compared with a warning", "[report]") {
  const Profile before = made_profile_on_machine();
  Profile after = before;
  CHECK(detail::unlike(before, after).empty());
  after.batch = 64, after.model = "other";
  CHECK(detail::unlike(before, after).size() == 2);
  const std::string page = report_html(before, &after);
  CHECK(has(page, "Not alike"));
  CHECK(has(page, "32 before, 64 after"));
  CHECK(has(detail::comparison(before, after, 1), "made before, other after"));
}

TEST_CASE("findings name what stands out", "[report]") {
  Profile p = made_profile_on_machine(2);
  std::string all;
  for (const std::string& s : detail::findings(p)) all += s + '\n';
  CHECK(has(all, "Rank 1 is the slowest"));
  CHECK(has(all, "1.500 times the mean"));
  CHECK(has(all, "kernels take 11.1 % longer than alone"));
  CHECK(has(all, "91 % of it behind kernels"));
  CHECK(
      has(all,
          "120 \u00B5s are for ranks that came late, 60 \u00B5s for bytes to move, and 20 \u00B5s "
          "for handing over"));
  CHECK_FALSE(has(all, "DISTURBED"));
  Profile busy = p;
  busy.processor.denied = {0, 300e-6, 600e-6, 1};  // of steps of 6 ms
  busy.machine->memory.back().disturbed = true;
  std::string flags;
  for (const std::string& s : detail::findings(busy)) flags += s + '\n';
  CHECK(has(flags, "DISTURBED</b>: rank 1 was ready to run but had no processor for 10 %"));
  CHECK(has(flags, "DISTURBED</b>: the machine was busy when its ceilings were measured"));
  busy = p;  // a far slower kernel is held by neither roof
  for (ProfileRow& r : busy.rows) r.time.mean *= 20;
  flags.clear();
  for (const std::string& s : detail::findings(busy)) flags += s + '\n';
  CHECK(has(flags, "by kernels far below both roofs"));
  CHECK(has(all, "Winograd"));
  CHECK_FALSE(has(all, "UNEXPLAINED"));
  p.rows[0].time.mean = 100e-6;  // 2.4 TFLOP/s: no ceiling allows that
  p.machine->memory.back().triad.together = p.machine->memory.back().read.together = 1e12;
  all.clear();
  for (const std::string& s : detail::findings(p)) all += s + '\n';
  CHECK(has(all, "UNEXPLAINED"));
  CHECK(has(report_html(p), "unexplained"));
}
