// Flags whose values are checked as they are read, each with one line for what is wrong.
#pragma once

#include <lamina/base/naming.hpp>

#include <CLI/CLI.hpp>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace lamina::cli {

namespace detail {

CLI::Validator whole(std::uint64_t least, std::uint64_t most);
/// Or this word.
CLI::Validator whole_or(std::string word, std::uint64_t least, std::uint64_t most);
/// Of "1.5GB" makes "1500000000".
CLI::Validator size();
CLI::Validator real(double least, double most);
CLI::Validator one_of(std::vector<std::string> names);

}  // namespace detail

/// --flag N: a whole number from `least` to `most`. Counts are multiplied with each other: 31 bits
/// leave room for that.
template <class T>
CLI::Option* count(CLI::App& app, const char* flag, T& to, std::uint64_t least, const char* help,
                   std::uint64_t most = 0x7FFFFFFF) {
  return app.add_option(flag, to, help)->type_name("N")->check(detail::whole(least, most));
}

/// --flag X: a number from `least` to `most`, never NaN.
template <class T>
CLI::Option* number(CLI::App& app, const char* flag, T& to, const char* help, double least = 0,
                    double most = std::numeric_limits<double>::max()) {
  return app.add_option(flag, to, help)->type_name("X")->check(detail::real(least, most));
}

/// --flag SIZE: bytes, more than 0, as in 800MB, 4GB or 1.5GiB.
inline CLI::Option* bytes(CLI::App& app, const char* flag, double& to, const char* help) {
  return app.add_option(flag, to, help)->type_name("SIZE")->transform(detail::size());
}

/// --flag a|b|c: one of the names.
inline CLI::Option* choice(CLI::App& app, const char* flag, std::string& to,
                           const std::vector<std::string>& names, const char* help) {
  return app.add_option(flag, to, help)
      ->type_name(CLI::detail::join(names, "|"))
      ->check(detail::one_of(names));
}

/// --flag NAME, or another `kind` of text.
inline CLI::Option* word(CLI::App& app, const char* flag, std::string& to, const char* kind,
                         const char* help) {
  return app.add_option(flag, to, help)->type_name(kind);
}

/// Runs `work`, whose errors begin with the name of the file that a flag gives.
template <class Work>
decltype(auto) for_flag(std::string_view flag, Work&& work) {
  return naming(flag, work, " ");
}

/// Lets --help of an app and its subcommands fit 100 columns.
void set_help(CLI::App& app);

/// Where a value is left out, the next flag is not taken for it.
void refuse_flags_as_values(CLI::App& app);

/// What is wrong with a command line, in one line, with the nearest known flag or command.
std::string usage_error(const CLI::App& app, const CLI::ParseError& error);

/// Of a program without ranks, or before there are any: the exit status after --help, or after what
/// is wrong was said; nothing where it goes on.
std::optional<int> parse(CLI::App& app, int argc, char** argv);

}  // namespace lamina::cli
