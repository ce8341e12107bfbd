#include "flags.hpp"

#include <lamina/base/nearest.hpp>
#include <lamina/base/text.hpp>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <memory>
#include <string_view>
#include <utility>

namespace lamina::cli {

namespace detail {

namespace {

template <class T>
bool parse(const std::string& s, T& value) {
  const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), value);
  return error == std::errc() && end == s.data() + s.size();
}

}  // namespace

CLI::Validator whole(std::uint64_t least, std::uint64_t most) {
  return {[=](std::string& s) -> std::string {
            std::uint64_t n = 0;
            if (parse(s, n) && n >= least && n <= most) return {};
            return text("expected a whole number from ", least, " to ", most, ", got '", s, "'");
          },
          ""};
}

CLI::Validator whole_or(std::string word, std::uint64_t least, std::uint64_t most) {
  return {[=](std::string& s) -> std::string {
            std::uint64_t n = 0;
            if (s == word || (parse(s, n) && n >= least && n <= most)) return {};
            return text("expected ", word, " or a whole number from ", least, " to ", most,
                        ", got '", s, "'");
          },
          ""};
}

CLI::Validator size() {
  return {[](std::string& s) -> std::string {
            constexpr std::pair<std::string_view, double> units[] = {
                {"TiB", 0x1p40}, {"GiB", 0x1p30}, {"MiB", 0x1p20},
                {"TB", 1e12},    {"GB", 1e9},     {"MB", 1e6}};
            for (const auto& [unit, bytes] : units)
              if (double x = 0; s.ends_with(unit) &&
                                parse(s.substr(0, s.size() - unit.size()), x) && x > 0 && x < 1e9)
                return s = exact(x * bytes), std::string();
            return text("expected a size as 800MB, 4GB or 1.5GiB, got '", s, "'");
          },
          ""};
}

CLI::Validator real(double least, double most) {
  return {[=](std::string& s) -> std::string {
            double x = 0;
            if (parse(s, x) && x >= least && x <= most) return {};
            return most < std::numeric_limits<double>::max()
                       ? text("expected a number from ", least, " to ", most, ", got '", s, "'")
                       : text("expected a number of at least ", least, ", got '", s, "'");
          },
          ""};
}

CLI::Validator one_of(std::vector<std::string> names) {
  return {[names = std::move(names)](std::string& s) -> std::string {
            std::string all;
            for (std::size_t i = 0; i < names.size(); ++i) {
              if (names[i] == s) return {};
              all += text(i == 0 ? "" : i + 1 == names.size() ? " or " : ", ", names[i]);
            }
            return text("expected ", all, ", got '", s, "'");
          },
          ""};
}

}  // namespace detail

namespace {

class Help final : public CLI::Formatter {
 public:
  std::string make_option(const CLI::Option* o, bool) const override {
    std::string left = "  " + o->get_name(false, true);
    if (const auto at = left.find("{false}"); at != left.npos) left.erase(at, 7);  // --no-NAME
    if (o->get_type_size() != 0) left += ' ' + o->get_type_name();
    std::string right = o->get_description();
    if (!o->get_default_str().empty()) right += text(" (default: ", o->get_default_str(), ')');

    std::string s = std::move(left);
    std::size_t column = s.size() + 1;
    if (column > first)
      column = width;  // no room beside the flag: on a line of its own
    else
      s.append(first - s.size(), ' '), column = first;
    std::size_t at = 0;
    while (at < right.size()) {
      const std::size_t end = std::min(right.find(' ', at), right.size());
      if (column + (end - at) > width)
        s += '\n' + std::string(first, ' '), column = first;
      else if (at > 0)
        s += ' ', ++column;
      s.append(right, at, end - at);
      column += end - at;
      at = end + 1;
    }
    return s + '\n';
  }

 private:
  static constexpr std::size_t first = 30, width = 98;  // where descriptions begin and end
};

/// All commands, flags of the app, and flags of the chosen commands.
std::vector<std::string> names_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* sub : app.get_subcommands({})) names.push_back(sub->get_name());
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  for (const CLI::App* sub : app.get_subcommands()) {
    const auto more = names_of(*sub);
    names.insert(names.end(), more.begin(), more.end());
  }
  return names;
}

}  // namespace

void set_help(CLI::App& app) {
  app.formatter(std::make_shared<Help>());
  app.set_help_flag("-h,--help", "print this and end");
  for (CLI::App* sub : app.get_subcommands({})) set_help(*sub);
}

void refuse_flags_as_values(CLI::App& app) {
  for (CLI::Option* option : app.get_options())
    if (!option->get_positional())  // of a program, perhaps: what is behind -- is no flag of ours
      option->check([](const std::string& s) {
        return s.starts_with("--") ? text("expected a value, got '", s, "'") : std::string();
      });
  for (CLI::App* sub : app.get_subcommands({})) refuse_flags_as_values(*sub);
}

std::string usage_error(const CLI::App& app, const CLI::ParseError& error) {
  const bool bad_value = dynamic_cast<const CLI::ValidationError*>(&error);
  if (const auto unknown = app.remaining(true); !unknown.empty() && !bad_value) {
    // A flag first: what stands behind -- is unknown where a flag before it was.
    const auto flag = std::ranges::find_if(
        unknown, [](const std::string& s) { return s.starts_with('-') && s != "--"; });
    const std::string& first = flag != unknown.end() ? *flag : unknown[0];
    const std::string word = first.substr(0, first.find('='));
    const auto names = names_of(app);
    const bool command = app.get_subcommands().empty() && !app.get_subcommands({}).empty();
    return text(word.starts_with('-') ? "unknown flag "
                : command             ? "unknown command "
                                      : "unexpected argument ",
                word,
                nearest(word, names) == word ? " in this place (it belongs behind the command)"
                                             : suggestion(word, names),
                ": see --help");
  }
  std::string what = error.what();
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error))
    what = what.substr(0, what.find(':')) + ": expected one value";
  if (what.starts_with("A subcommand is required")) what = "expected a command";
  for (char& c : what)
    if (c == '\n') c = ' ';
  return what + ": see --help";
}

std::optional<int> parse(CLI::App& app, int argc, char** argv) {
  set_help(app);
  refuse_flags_as_values(app);
  try {
    app.parse(argc, argv);
    return {};
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);
    std::fprintf(stderr, "lamina: error: %s\n", usage_error(app, e).c_str());
    return 2;
  }
}

}  // namespace lamina::cli
