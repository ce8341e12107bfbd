// Verdicts on kernels in a file: one line each, "number<tab>what". Processes append at the same
// time, so a line is written at once, the first one for something counts, one that is not whole yet
// is read later, and lines that make no sense are passed over.
#include "machine/cache.hpp"
#include "machine/measure.hpp"

#include <lamina/base/file.hpp>
#include <lamina/kernels/choice.hpp>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <system_error>

namespace lamina {
namespace {

class KeptVerdicts final : public Verdicts {
 public:
  explicit KeptVerdicts(std::string path) : path_(std::move(path)) {}

  std::optional<double> find(const std::string& what) override {
    if (const auto known = Verdicts::find(what)) return known;
    read();  // by now another process may have found out
    return Verdicts::find(what);
  }

  double keep(const std::string& what, double number) override {
    try {
      std::error_code failed;  // the file says what is wrong, if anything is
      std::filesystem::create_directories(std::filesystem::path(path_).parent_path(), failed);
      // Before it too: the last line may have been cut off by a full disk or a kill.
      // With all digits: who reads it must decide as who measured it.
      const std::string line = text('\n', format("%.17g", number), '\t', what, '\n');
      File(path_, File::Mode::append).write(line.data(), line.size());
    } catch (const Error&) {  // a full disk, or no home to write to: compared anew next time
    }
    read();  // another process may have been first
    return Verdicts::keep(what, number);
  }

 private:
  /// What is new.
  void read() {
    constexpr std::uint64_t most_bytes = 16 << 20;  // of a file that could be ours
    try {
      const std::string all = read_file(path_, most_bytes);
      const std::size_t whole = all.rfind('\n') + 1, from = std::min(read_, whole);
      std::istringstream lines(all.substr(from, whole - from));
      read_ = whole;
      for (std::string line; std::getline(lines, line);) {
        const auto tab = line.find('\t');
        if (tab == std::string::npos || tab == 0) continue;
        char* end = nullptr;
        const double number = std::strtod(line.c_str(), &end);
        if (end == line.c_str() + tab && number >= 0) Verdicts::keep(line.substr(tab + 1), number);
      }
    } catch (const Error&) {  // there is none yet
    }
  }

  std::string path_;
  std::size_t read_ = 0;  // bytes
};

}  // namespace

std::shared_ptr<Verdicts> kept_verdicts() {
  const std::string path = detail::cache_path("kernels", detail::processor_name(), "txt");
  if (path.empty()) return std::make_shared<Verdicts>();
  return std::make_shared<KeptVerdicts>(path);
}

}  // namespace lamina
