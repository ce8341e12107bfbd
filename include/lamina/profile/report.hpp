// Profiles as files (docs/profiling.md describes them).
#pragma once

#include <lamina/profile/profile.hpp>

#include <string>

namespace lamina {

inline constexpr const char* profile_schema = "lamina-profile";
inline constexpr int profile_schema_version = 4;

/// Writes all of the profile. The file appears complete or not at all. Throws Error naming `path`.
void write_profile_json(const std::string& path, const Profile& profile);

/// Reads what write_profile_json wrote. Throws Error naming `path` for a file that is missing,
/// damaged, of another schema or of another version.
Profile read_profile_json(const std::string& path);

/// Writes a line of column names, then a line per row. Throws Error naming `path`.
void write_profile_csv(const std::string& path, const Profile& profile);

/// Writes the timeline as a Chrome trace (chrome://tracing, ui.perfetto.dev): a process per rank, a
/// lane each for kernels, waiting and communication. Throws Error naming `path`.
void write_trace(const std::string& path, const Profile& profile);

/// The roofline as a drawing of its own. Throws Error without ceilings.
std::string roofline_svg(const Profile& profile, const Profile* other = nullptr);

/// The report as one HTML page that needs no network; with `other`, a comparison from `profile`
/// (before) to `other` (after).
std::string report_html(const Profile& profile, const Profile* other = nullptr);

/// Writes index.html, the drawings as SVG, profile.json, profile.csv and trace.json into `folder`,
/// which is made if need be, and removes drawings of an earlier report that this one lacks; with
/// `other`, profile.json is that of `other`, and before.json the first one's. Each file appears
/// complete or not at all. Returns their paths. Throws Error naming what could not be written.
std::vector<std::string> write_report(const std::string& folder, const Profile& profile,
                                      const Profile* other = nullptr);

}  // namespace lamina
