// Profiles as files (docs/profiling.md describes them).
#pragma once

#include <lamina/profile/profile.hpp>

#include <string>

namespace lamina {

inline constexpr const char* profile_schema = "lamina-profile";
inline constexpr int profile_schema_version = 1;

/// Writes all of the profile. The file appears complete or not at all. Throws Error naming `path`.
void write_profile_json(const std::string& path, const Profile& profile);

/// Reads what write_profile_json wrote. Throws Error naming `path` for a file that is missing,
/// damaged, of another schema or of another version.
Profile read_profile_json(const std::string& path);

/// Writes a line of column names, then a line per row. Throws Error naming `path`.
void write_profile_csv(const std::string& path, const Profile& profile);

}  // namespace lamina
