// SmallTable: a table of the report's page that neither sorts nor scrolls.
#pragma once

#include <lamina/base/text.hpp>

#include <initializer_list>
#include <string>
#include <vector>

namespace lamina::detail {

/// The first cell of a row holds words, the others numbers. All of it is HTML already.
class SmallTable {
 public:
  SmallTable(const std::string& caption, const std::vector<std::string>& heads) {
    append(out_, text("<table class=\"small\"><caption>", caption, "</caption><thead><tr>"));
    cells("th scope=\"col\"", "th", heads);
    append(out_, "</tr></thead><tbody>\n");
  }
  void row(const std::vector<std::string>& values) {
    append(out_, "<tr>");
    cells("td", "td", values);
    append(out_, "</tr>\n");
  }
  std::string done() const { return out_ + "</tbody></table>\n"; }

 private:
  void cells(const char* open, const char* close, const std::vector<std::string>& values) {
    for (std::size_t i = 0; i < values.size(); ++i)
      append(out_,
             text('<', open, " class=\"", i == 0 ? 'w' : 'n', "\">", values[i], "</", close, '>'));
  }

  std::string out_;
};

}  // namespace lamina::detail
