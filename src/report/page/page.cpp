// The report: one HTML page that holds everything it shows.
#include "report/compare.hpp"
#include "report/drawings/drawings.hpp"
#include "report/drawings/svg.hpp"
#include "sections.hpp"

#include <lamina/profile/report.hpp>

#include <set>

namespace lamina {

namespace detail {

extern const char* const page_css;  // page.css, ...: see cmake/LaminaEmbed.cmake
extern const char* const page_js;
extern const char* const timeline_js;

namespace {

/// The sections of a page, and where to find them.
class Sections {
 public:
  /// Nothing where there is no body.
  void add(const char* id, const char* title, const std::string& note, const std::string& body) {
    if (body.empty()) return;
    append(contents_, text("<li><a href=\"#", id, "\">", title, "</a></li>\n"));
    append(sections_, text("<section id=\"", id, "\"><h2>", title, "</h2>",
                           note.empty() ? note : text("<p class=\"note\">", note, "</p>"), "\n",
                           body, "</section>\n"));
  }
  std::string done() const {
    return text("<nav aria-label=\"contents\"><ul>\n", contents_, "</ul></nav>\n<main>\n",
                sections_, "</main>\n");
  }

 private:
  std::string contents_, sections_;
};

std::string figure(const std::string& drawing, const std::string& caption = "") {
  if (drawing.empty()) return "";
  return text("<figure>", caption.empty() ? "" : text("<figcaption>", caption, "</figcaption>"),
              drawing, "</figure>\n");
}

std::string title_of(const Profile& p) { return p.model.empty() ? "profile" : p.model; }

std::string facts(const Profile& p) {
  return text(escape_xml(p.backend), " &middot; ", escape_xml(p.dtype), " &middot; batch ", p.batch,
              " over ", plural(std::size_t(p.ranks), "rank"), " &middot; ", escape_xml(p.optimizer),
              " &middot; lamina ", escape_xml(p.version));
}

/// With so many digits that two runs can be compared.
std::string figure_of(double seconds) {
  return seconds >= 1 ? format("%.3f s", seconds)
                      : format(seconds >= 0.1 ? "%.1f ms" : "%.2f ms", seconds * 1e3);
}

/// One of the figures at the top. `before` is empty unless two runs are compared.
std::string tile(const char* what, const std::string& value, const std::string& note,
                 const std::string& before = "") {
  return text("<div class=\"tile\"><dt>", what, "</dt><dd>",
              before.empty() ? before : text("<s>", before, "</s>"), "<b>", value, "</b><small>",
              note, "</small></dd></div>\n");
}

/// "node1, 4 threads each", "2 hosts"
std::string hosts_of(const Profile& p) {
  std::set<std::string> hosts, all(p.hosts.begin(), p.hosts.end());
  for (const std::string& s : all) hosts.insert(s.substr(0, s.rfind(", ")));
  return hosts.size() > 1 ? text(hosts.size(), " hosts")
         : all.size() > 1 ? escape_xml(*hosts.begin())
         : all.empty()    ? std::string()
                          : escape_xml(*all.begin()) + (p.ranks > 1 ? " each" : "");
}

/// "1.23 times the images/s"
std::string ratio(double before, double after, const char* of) {
  return before > 0 && after > 0 ? format("%.3f times ", after / before) + of : std::string();
}

/// A step as one bar: kernels, waiting, and what lies in no row.
std::string split_bar(const Profile& p, const std::string& label) {
  const double step = p.end_to_end.mean;
  if (step <= 0) return "";
  struct Part {
    const char *kind, *what;
    double share;
  };
  const Part parts[] = {
      {"kernels", "kernels", p.compute.mean / step},
      {"exposed", "exposed communication", (p.sum_layers.mean - p.compute.mean) / step},
      {"unaccounted", "unaccounted", p.unaccounted()}};
  std::string bars, words;
  for (const Part& part : parts) {
    const double width = std::max(0.0, part.share);
    append(bars, text("<i class=\"", part.kind, "\" style=\"flex-grow:", format("%.4f", width),
                      "\"></i>"));
    append(words, text("<span class=\"", part.kind, "\"><b>", percent_text(part.share), "</b> ",
                       part.what, "</span> "));
  }
  return text("<div class=\"split\"><div class=\"parts\">", bars, "</div><p>",
              label.empty() ? label : text("<em>", label, "</em> "), words, "</p></div>\n");
}

double wasted(const Profile& p) {
  double sum = 0;
  if (has_ceilings(p))
    for (const ProfileRow& row : p.rows) sum += roof(p, row).wasted;
  return sum;
}

std::string tiles(const Profile& p, const Profile* before) {
  const auto was = [&](auto&& of) { return before ? of(*before) : std::string(); };
  const auto images = [](const Profile& x) {
    return format(images_per_second(x) < 100 ? "%.2f" : "%.1f", images_per_second(x));
  };
  const auto step = [](const Profile& x) { return figure_of(step_seconds(x)); };
  const auto ranks = [](const Profile& x) { return text(x.ranks); };
  const auto waste = [](const Profile& x) {
    return has_ceilings(x) ? figure_of(wasted(x)) : "&ndash;";
  };
  const Difference change = before ? step_difference(*before, p) : Difference();
  const bool same = before && change.verdict() == Verdict::none;
  const std::string by_chance = words_of_none(change);
  std::string out = "<dl class=\"tiles\">\n";
  append(out, tile("images/s", images(p),
                   same     ? by_chance
                   : before ? ratio(images_per_second(*before), images_per_second(p), "as many")
                            : text("global batch of ", p.batch),
                   was(images)));
  append(out,
         tile("step", step(p),
              same               ? by_chance
              : before           ? ratio(step_seconds(*before), step_seconds(p), "as long")
              : p.clean.mean > 0 ? text(figure_of(p.end_to_end.mean), " while layers were recorded")
                                 : text("while layers were recorded; mean of ", p.steps),
              was(step)));
  append(out, tile("ranks", ranks(p), hosts_of(p), was(ranks)));
  append(out,
         tile("wasted", waste(p),
              !has_ceilings(p)        ? "ceilings were not measured"
              : before                ? ratio(wasted(*before), wasted(p), "as much")
              : p.end_to_end.mean > 0 ? percent_text(wasted(p) / p.end_to_end.mean) + " of a step"
                                      : std::string(),
              was(waste)));
  append(out, "</dl>\n");
  if (before) append(out, split_bar(*before, "before"));
  return out + split_bar(p, before ? "after" : "");
}

std::string list(const std::vector<std::string>& items) {
  std::string out = "<ul class=\"findings\">\n";
  for (std::string item : items) {
    for (std::size_t at = 0; (at = item.find(" %", at)) != std::string::npos;)
      item.replace(at, 1, "&nbsp;");  // no line begins with a unit
    append(out, text("<li>", item, "</li>\n"));
  }
  return out + "</ul>\n";
}

std::string provenance(const Profile& p) {
  std::string out = text("<dl class=\"facts\"><dt>Lamina</dt><dd>", escape_xml(p.version),
                         ", profile schema ", profile_schema_version, "</dd>");
  const auto fact = [&](const char* what, const std::string& value) {
    if (!value.empty()) append(out, text("<dt>", what, "</dt><dd>", value, "</dd>"));
  };
  fact("Back end", text(escape_xml(p.backend), ", ", escape_xml(p.dtype)));
  fact("Optimizer", escape_xml(p.optimizer));
  fact("Command", p.command.empty() ? "" : text("<code>", escape_xml(p.command), "</code>"));
  fact("Steps", text(p.steps, " recorded"));
  const ProcessorUse& use = p.processor;
  const char* each = p.ranks > 1 ? " of a rank" : "";
  if (use.time.max > 0) {
    fact("Processor time", text(seconds_text(use.time.mean), " of a step", each));
    fact("Involuntary switches",
         text(format("%.1f in a step", use.switches.mean), each,
              p.ranks > 1 ? "; to yield while it waits for others counts, too" : ""));
  }
  if (p.clock_error > 0)
    fact("Clocks", text("of the hosts may be ", seconds_text(p.clock_error),
                        " apart: a lateness shorter than that says nothing"));
  for (std::size_t r = 0; r < p.hosts.size(); ++r)
    fact(text("Rank ", r).c_str(), escape_xml(p.hosts[r]));
  fact("Counting",
       "1 FMA = 2 FLOP; bytes are compulsory: each operand once; convolutions count as "
       "direct ones, whatever the algorithm");
  return out + "</dl>\n";
}

/// What shows or hides columns, rows and passes; the script brings it to life.
std::string controls(bool compares) {
  std::string out =
      "<div class=\"controls\" hidden><input id=\"filter\" type=\"search\" placeholder=\"filter "
      "rows\" aria-label=\"filter rows by words\">";
  if (!compares)
    append(out,
           "<span class=\"choice\" role=\"group\" aria-label=\"rows\">"
           "<button type=\"button\" data-show=\"passes\" aria-pressed=\"true\">per pass"
           "</button><button type=\"button\" data-show=\"layers\" aria-pressed=\"false\">per "
           "layer</button></span>");
  return out +
         "<span id=\"columns\" role=\"group\" aria-label=\"columns\"></span>"
         "<output id=\"shown\"></output></div>\n";
}

/// What is to be said of the plan.
std::string plan_note(const Profile& p, bool compares) {
  const std::string after = compares ? "Of the run after. " : "";
  if (!p.plan) return after + "Nothing was predicted of this step.";
  return text(after, "Predicted for the cluster ", escape_xml(p.plan->cluster),
              "; the error is predicted / measured - 1.");
}

std::string page(const std::string& title, const std::string& body) {
  return text(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
      "'unsafe-inline'; script-src 'unsafe-inline'; img-src data:\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n<link rel=\"icon\" "
      "href=\"data:,\">\n<title>",
      title, "</title>\n<style>\n", drawing_style(), page_css, "</style>\n</head>\n<body>\n", body,
      "<script>\n", page_js, timeline_js, "</script>\n</body>\n</html>\n");
}

}  // namespace

}  // namespace detail

std::string report_html(const Profile& profile, const Profile* other) {
  using namespace detail;
  const Profile& last = other ? *other : profile;
  const Profile* before = other ? &profile : nullptr;
  const std::string title = escape_xml(!other || title_of(profile) == title_of(*other)
                                           ? title_of(last)
                                           : text(title_of(profile), " and ", title_of(*other)));
  const auto both = [&](auto&& make) {
    return other ? text("<h3>Before</h3>", make(profile), "<h3>After</h3>", make(*other))
                 : make(profile);
  };
  const auto machine = [](const Profile& p) {
    return p.machine ? machine_tables(*p.machine) : std::string();
  };

  const std::string body = text(
      "<header><div><h1>", title, other ? " <span>two runs compared</span>" : "",
      "</h1><button type=\"button\" id=\"theme\" hidden>dark</button></div>\n<p class=\"about\">",
      other ? text("<em>before</em> ", facts(profile), "<br><em>after</em> ", facts(*other))
            : facts(profile),
      "</p>\n", tiles(last, before), "</header>\n");
  Sections sections;
  sections.add("findings", "Findings", "",
               list(other ? findings(profile, *other) : findings(profile)));
  sections.add("roofline", "Roofline",
               text(other ? "Each line leads from a row before to the same row after."
                          : "A dot per layer and pass: its size is its time, its colour what "
                            "bounds it.",
                    " Point at a dot to find its row; where dots cover each other, a click lists "
                    "them."),
               figure(draw_roofline(profile, other, {})));
  sections.add("communication", "Communication roofline",
               "What a layer computes per byte that its link carries, beside what links and "
               "processors sustain.",
               figure(draw_communication(profile, other, {})));
  if (other)
    sections.add(
        "table", "Differences",
        "Kernels and waiting of each row: first what changed, the largest difference "
        "first, then what cannot be told from chance: a difference that is no larger than "
        "what steps of one run, or the means of a few, differ by. It says none.",
        text(totals_table(profile, *other), controls(true), changes_table(profile, *other)));
  else
    sections.add("table", "Layers",
                 has_ceilings(profile)
                     ? "Ranked by wasted time: kernels and waiting beyond the roof."
                     : "Ranked by time.",
                 text(controls(false), rows_table(profile)));
  sections.add("plan", "Plan", plan_note(last, other), plan_tables(last));
  sections.add("timeline", "Timeline of a step", "The last recorded step.",
               other ? figure(draw_timeline(profile, {.before = true}), "before") +
                           figure(draw_timeline(*other, {}), "after")
                     : figure(draw_timeline(profile, {})));
  const std::string over_time = figure(draw_ranks(last, {}));
  sections.add("ranks", "Ranks over time",
               text(other ? "Of the run after. " : "", "All else on this page is of ",
                    plural(std::size_t(last.steps), "step"), " after the last change."),
               over_time.empty() ? over_time : over_time + ranks_table(last));
  sections.add("memory", "Memory per layer", other ? "Of the run after, on rank 0." : "Of rank 0.",
               figure(draw_memory(last, {})));
  sections.add("groups", "By type and by stage", other ? "Of the run after." : "",
               text("<div class=\"tables\">", groups_tables(last), "</div>"));
  if (profile.machine || last.machine)
    sections.add("machine", "Machine",
                 "Ceilings as measured, while the node&#39;s other ranks idle (alone) and while "
                 "all do the same.",
                 other && !unlike(profile, *other).empty() ? both(machine) : machine(last));
  sections.add("run", "Run", "", both(provenance));
  return page(title + " &ndash; Lamina", body + sections.done());
}

}  // namespace lamina
