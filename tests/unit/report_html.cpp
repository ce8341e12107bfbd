// The report's page: complete, self-contained, and with the right numbers in it.
#include "catch.hpp"
#include "report/compare.hpp"
#include "report/drawings/svg.hpp"
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
  p.dtype = "f64", p.arithmetic = DType::f64;
  p.machine->compute.clear();  // a machine, but no roofs
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
  // What takes longer alone takes no longer beside communication.
  Profile slow_alone = made_profile_on_machine(2);
  slow_alone.rows[1].alone.mean = 2 * slow_alone.rows[1].time.mean;
  const std::string no = words_of(row_with(report_html(slow_alone), "data-row=\"1\""));
  CHECK((has(no, " 2400.5 no ") && !has(no, " 0.50 ")));
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

TEST_CASE("a report has the plan, what was predicted, and which plans were timed", "[report]") {
  Profile p = made_profile_on_machine(2);
  CHECK_FALSE(has(report_html(p), "id=\"plan\""));  // all layers alike, nothing predicted
  p.clean = {0.01, 0.01, 0.01, 0};
  p.rows[3].split = p.rows[4].split = "height:2";  // relu1
  p.rows.insert(p.rows.begin() + 3, made_row(9, "relu1.reshard", "Reshard", Pass::forward, 50, {}));
  const auto section = [&] {
    const std::string page = report_html(p);
    const auto begin = page.find("<section id=\"plan\"");
    return words_of(page.substr(begin, page.find("</section>", begin) - begin));
  };
  // relu1 has its reshard with it: 50 + 300 + 450 us.
  CHECK(has(section(), "Nothing was predicted of this step."));
  CHECK(has(section(), " relu1 height:2 0.800 "));
  CHECK_FALSE(has(section(), "error"));
  p.plan = PlannedStep{"two <boxes>", 0.012, {{"auto", 0.012, 0.010}, {"da&ta", 0.030, 0.020}}};
  p.rows[3].predicted = 100e-6, p.rows[4].predicted = 900e-6;
  const std::string words = section();
  for (const char* expected :
       {" relu1 height:2 0.800 1.000 +25.0 ", " a step 10.000 12.000 +20.0 ",
        " auto taken 10.000 12.000 +20.0 ", " da&amp;ta 20.000 30.000 +50.0 ", "two &lt;boxes&gt;"})
    CHECK(has(words, expected));
  CHECK(has(report_html(made_profile_on_machine(2), &p), "Of the run after. Predicted"));
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
  CHECK(all[0].difference.seconds() == Approx(-1200.25e-6));
  CHECK(all[1].any().name == "conv0");
  CHECK(all[1].before == nullptr);
  CHECK(all[2].difference.seconds() == Approx(-200e-6));
  CHECK(all[2].both());
  CHECK(all[3].difference.relative() == Approx(0.1));
  CHECK(all[3].before->pass == Pass::forward);
  CHECK(all[4].any().pass == Pass::update);
  CHECK(all[4].after == nullptr);
  CHECK(all.back().difference.seconds() == 0);

  const std::string page = report_html(before, &after);
  CHECK(has(page, "only before"));
  CHECK(has(page, "only after"));
  const auto row = text("data-row=\"", all[3].after - after.rows.data(), "\" data-before=\"3\"");
  const std::string relu = words_of(row_with(page, row));
  for (const char* cell : {" 300.0 ", " 330.0 ", " +30.0 ", " +10.0 "}) CHECK(has(relu, cell));

  const std::string table = detail::comparison(before, after, 3);
  CHECK(has(table, "only before"));
  CHECK(has(table, "only after"));
  CHECK(has(table, "-200.0"));
  CHECK_FALSE(has(table, "+30.0"));
  CHECK(has(table, text('(', all.size() - 3, " more)")));
}

TEST_CASE("a difference within the spread of steps is none", "[report]") {
  using detail::Difference;
  using detail::Verdict;
  // Standard deviations of 3 and 4 us: steps of the two runs differ by 5 us anyway.
  const auto of = [](double after, int steps) {
    return Difference{{100e-6, 3e-6, steps}, {after, 4e-6, steps}};
  };
  CHECK(of(100e-6, 30).chance() == Approx(5e-6));
  CHECK(of(104.9e-6, 30).verdict() == Verdict::none);
  CHECK(of(95.1e-6, 30).verdict() == Verdict::none);
  CHECK(of(105.1e-6, 30).verdict() == Verdict::more);
  CHECK(of(94.9e-6, 30).verdict() == Verdict::less);
  CHECK(of(100e-6, 30).verdict() == Verdict::none);
  // Of four steps each the means differ by up to 4.032 * sqrt(3^2 / 4 + 4^2 / 4) us by chance, with
  // 6.25^2 / (2.25^2 / 3 + 4^2 / 3) = 5.56 degrees of freedom.
  CHECK(of(100e-6, 4).chance() == Approx(4.032 * 2.5e-6));
  CHECK(of(109e-6, 4).verdict() == Verdict::none);
  CHECK(of(111e-6, 4).verdict() == Verdict::more);
  CHECK(of(200e-6, 1).verdict() == Verdict::unknown);
  CHECK(Difference{{1, -1, 10}, {2, 0.1, 10}}.verdict() == Verdict::unknown);
  CHECK(Difference{{1, 0, 10}, {1.001, 0, 10}}.verdict() == Verdict::more);  // steps all alike
}

TEST_CASE("what did not change comes last, and is told so", "[report]") {
  Profile before = made_profile_on_machine(2);
  for (ProfileRow& r : before.rows) r.step_total_std = 1e-6;
  Profile after = before;
  after.rows[0].step_total_std = 500e-6, after.rows[0].time.mean += 400e-6;  // conv1 forward
  after.rows[3].time.mean += 30e-6;                                          // relu1 forward
  const std::vector<Change> all = detail::changes(before, after);
  CHECK(all[0].after == &after.rows[3]);
  CHECK(all[0].verdict() == detail::Verdict::more);
  CHECK(all[1].after == &after.rows[0]);
  CHECK(all[1].verdict() == detail::Verdict::none);

  const std::string page = report_html(before, &after);
  const std::string relu = words_of(row_with(page, "data-row=\"3\" data-before=\"3\""));
  INFO(relu);
  for (const char* cell :
       {" 300.0 &plusmn; 1.0 ", " 330.0 &plusmn; 1.0 ", " +30.0 ", " 1.4 ", " more "})
    CHECK(has(relu, cell));
  const std::string conv = words_of(row_with(page, "data-row=\"0\" data-before=\"0\""));
  for (const char* cell : {" +400.0 ", " 500.0 ", " none "}) CHECK(has(conv, cell));
  std::string told;
  for (const std::string& s : detail::findings(before, after)) told += s + '\n';
  CHECK(has(told, "Lost most: <b>relu1</b> forward (+30"));
  CHECK_FALSE(has(told, "conv1"));
  CHECK(has(told, text(all.size() - 1, " rows with no change that could be told from chance")));
  const std::string table = detail::comparison(before, after, 3);
  CHECK(
      has(table, text(all.size() - 1, " of ", all.size(), " rows: no change that could be told")));

  // Waiting has a spread of its own: files that lack it say nothing about rows that wait.
  before.rows[1].step_total_std = -1;
  CHECK(detail::measured(before, before.rows[1]).std < 0);
  before.rows[0].step_total_std = -1, before.rows[0].step_std = 2e-6;
  CHECK(detail::measured(before, before.rows[0]).std == 2e-6);
}

TEST_CASE("too few steps do not say that nothing changed", "[report]") {
  Profile before = made_profile_on_machine();
  before.steps = 3;
  before.clean.mean = 61.5e-3, before.step_spread.clean = 0.67e-3;
  Profile after = before;
  after.clean.mean = 75.4e-3, after.step_spread.clean = 6.5e-3;
  const std::string words = "not told from chance (up to 37.4 ms)";
  CHECK(detail::words_of_none(detail::step_difference(before, after)) == words);
  const std::string all = detail::comparison(before, after, 3), page = report_html(before, &after);
  CHECK(has(all, "(0.816 times as fast): " + words));
  CHECK(count(page, words) == 3);  // images/s, step, and among the findings
  for (const std::string& s : {all, page}) {
    CHECK_FALSE(has(s, "no change:"));
    CHECK_FALSE(has(s, "is no change"));
    CHECK_FALSE(has(s, "did not change"));
  }
  CHECK(has(detail::comparison(before, before, 0), "(1.000 times as fast): no difference"));
}

TEST_CASE("a comparison says which run was disturbed", "[report]") {
  const Profile quiet = made_profile_on_machine(2);
  Profile busy = quiet;
  busy.processor.denied = {0, 300e-6, 600e-6, 1};  // of steps of 6 ms
  Profile low = quiet;
  low.machine->memory.back().disturbed = true;
  const auto told = [](const Profile& before, const Profile& after) {
    std::string all;
    for (const std::string& s : detail::findings(before, after)) all += s + '\n';
    return all;
  };
  CHECK_FALSE(has(told(quiet, quiet), "DISTURBED"));
  CHECK_FALSE(has(detail::comparison(quiet, quiet, 3), "DISTURBED"));
  const std::string denied = ": rank 1 was ready to run but had no processor for 10 %";
  const std::string roofs = ": the machine was busy when its ceilings were measured";
  CHECK(has(told(busy, low), "DISTURBED</b> before" + denied));
  CHECK(has(told(busy, low), "DISTURBED</b> after" + roofs));
  CHECK(has(detail::comparison(busy, low, 3), "DISTURBED before" + denied));
  CHECK(has(detail::comparison(low, busy, 3), "DISTURBED before" + roofs));
  CHECK(has(detail::comparison(low, busy, 3), "DISTURBED after" + denied));
}

TEST_CASE("ceilings that were disturbed are marked in a report", "[report]") {
  Profile p = made_profile_on_machine(2);
  CHECK_FALSE(has(detail::machine_tables(*p.machine), "?"));
  CHECK_FALSE(has(detail::machine_tables(*p.machine), "isturbed"));
  p.machine->compute[1].disturbed = p.machine->memory[1].disturbed = true;
  p.machine->comm[0].disturbed = true, p.machine->missing = 2;
  const std::string tables = detail::machine_tables(*p.machine);
  CHECK(has(tables, "avx2</small> ?<"));
  CHECK(has(tables, ">L2 ?<"));
  CHECK(has(tables, "s</small> ?<"));
  CHECK(count(tables, "?") == 4);  // three, and what it means
  CHECK(has(tables, "what is marked (3) is not kept"));
  CHECK(has(tables, "when they were measured: 2 ceilings"));
}

TEST_CASE("a report has what a run had of processors and clocks", "[report]") {
  Profile p = made_profile_on_machine(2);
  p.clock_error = 20e-6;
  std::string page = report_html(p);
  CHECK(has(page, "<dt>Processor time</dt><dd>11.5 ms of a step of a rank"));
  CHECK(has(page, "<dt>Involuntary switches</dt><dd>3.0 in a step of a rank; to yield"));
  CHECK(has(page, "<dt>Clocks</dt><dd>of the hosts may be 20 \u00B5s apart"));
  p.clock_error = 0, p.processor = {};
  page = report_html(p);
  for (const char* what : {"<dt>Processor time", "<dt>Involuntary", "<dt>Clocks"})
    CHECK_FALSE(has(page, what));
}

TEST_CASE("a comparison tells how unaccounted time has grown", "[report]") {
  Profile before = made_profile_on_machine(2);
  before.step_spread = {1e-5, 1e-5, 2e-5, 1e-5, 1e-5};
  Profile after = before;
  after.end_to_end.mean += 300e-6;
  const auto finding = [&] {
    for (const std::string& s : detail::findings(before, after))
      if (has(s, "Unaccounted")) return s;
    return std::string();
  };
  const double was = before.end_to_end.mean - before.sum_layers.mean;
  INFO(finding());
  CHECK(has(finding(), text("<b>+300 \u00B5s</b>", format(" (%+.1f %%)", 100 * 300e-6 / was),
                            ", while steps differ by 28.3 \u00B5s by chance")));
  CHECK(has(finding(), detail::percent_text(after.unaccounted())));
  CHECK(has(report_html(before, &after), "<b>unaccounted</b>"));
  CHECK(has(detail::comparison(before, after, 0), "\nunaccounted "));
  after.end_to_end.mean = before.end_to_end.mean + 10e-6;
  CHECK(has(finding(), ": not told from chance (up to 28.3 \u00B5s)."));
  after.step_spread.unaccounted = -1;
  CHECK(has(finding(), "by chance is not known"));
}

TEST_CASE("a report has contents, and rows beyond 60 are folded", "[report]") {
  Profile p = made_profile_on_machine(2);
  const auto label = [&] {
    const std::string page = report_html(p);
    const std::size_t at = page.find("<label for=\"all-rows\"");
    REQUIRE(at != std::string::npos);
    return page.substr(at, page.find("</label>", at) - at);
  };
  CHECK(has(label(), " hidden"));
  while (p.rows.size() < 60)
    p.rows.push_back(made_row(7, text("l", p.rows.size()), "ReLU", Pass::forward, 10, {8, 8}));
  CHECK(has(label(), " hidden"));
  p.rows.push_back(made_row(7, "last", "ReLU", Pass::forward, 10, {8, 8}));
  CHECK_FALSE(has(label(), " hidden"));
  CHECK(has(label(), "<span>1</span> more row"));
  for (const std::string& page : {report_html(p), report_html(p, &p)}) {
    const std::string nav = page.substr(page.find("<nav"), page.find("</nav>") - page.find("<nav"));
    CHECK(count(nav, "<a href=\"#") == count(page, "<section id="));
    CHECK(count(page, "<section id=") >= 8);
    for (std::size_t at = 0; (at = nav.find("href=\"#", at)) != std::string::npos;) {
      at += 7;
      const std::string id = nav.substr(at, nav.find('"', at) - at);
      CHECK(count(page, text(" id=\"", id, "\"")) == 1);
    }
  }
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
