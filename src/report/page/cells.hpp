// Cells of the page's tables, and the frame of the one that sorts: what rows and differences share.
#pragma once

#include "report/drawings/svg.hpp"

#include <lamina/profile/detail/lines.hpp>
#include <lamina/profile/profile.hpp>

#include <algorithm>
#include <string>

namespace lamina::detail {

/// Empty for nothing.
inline std::string number(double v, int decimals) {
  return v > 0 ? format("%.*f", decimals, v) : std::string();
}

/// In kernels and waiting, by the plan; seconds.
inline double predicted_of(const Line& l) {
  return l.sum([](const ProfileRow& r) { return r.predicted; });
}

/// predicted / measured - 1, in %; empty where one of them is missing.
inline std::string error_text(double predicted, double measured) {
  return predicted > 0 && measured > 0 ? format("%+.1f", 100 * (predicted / measured - 1))
                                       : std::string();
}

/// A number with a bar behind it, of `part` of the cell's width.
inline std::string bar(const std::string& shown, double part, const char* kind) {
  if (shown.empty()) return shown;
  return text("<i class=\"bar ", kind,
              "\" style=\"--part:", format("%.3f", std::clamp(part, 0.0, 1.0)), "\"></i>", shown);
}

inline std::string layer_cell(const ProfileRow& r) {
  std::string about = escape_xml(r.type);
  if (!r.describe.empty()) about += ' ' + escape_xml(r.describe);
  if (!r.fused_into.empty()) about += ", in " + escape_xml(r.fused_into);
  return text("<b>", escape_xml(r.name), "</b>",
              about.empty() ? about : text("<small>", about, "</small>"));
}

inline std::string head_cell(const char* classes, const char* what, const char* head,
                             const char* sorted) {
  return text("<th scope=\"col\" class=\"", classes, "\" title=\"", what, "\" aria-sort=\"", sorted,
              "\"><button type=\"button\">", head, "</button></th>");
}

/// Rows that the page shows at once; page.css folds those beyond, and the script knows the number.
inline constexpr std::size_t unfolded = 60;

/// Up to the cells of the head. Whether all rows are shown is a checkbox, so that unfolding needs
/// no script; its label stands below the table.
inline std::string table_begin() {
  return "<input type=\"checkbox\" id=\"all-rows\" aria-label=\"show all rows\">\n<div "
         "class=\"scroll\" tabindex=\"-1\"><table id=\"rows\"><thead><tr>\n";
}

/// From the end of the last body on, which has `rows` rows.
inline std::string table_end(std::size_t rows) {
  const std::size_t more = rows - std::min(rows, unfolded);
  return text("</table></div>\n<label for=\"all-rows\"", more > 0 ? "" : " hidden", "><span>", more,
              "</span> more ", more == 1 ? "row" : "rows", "</label>\n");
}

}  // namespace lamina::detail
