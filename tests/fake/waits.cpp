#include "fake/waits.hpp"

#include <execinfo.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

extern "C" const char __executable_start, etext;

namespace lamina::test {

namespace {

using Callers = std::vector<std::uintptr_t>;

/// Innermost first; 0 = not of the program itself.
[[gnu::noinline]] Callers callers() {
  void* found[48];
  const int count = backtrace(found, 48);
  Callers all;
  for (int i = 2; i < count; ++i) {  // not this, and not left_out()
    const char* const at = static_cast<const char*>(found[i]);
    const bool known = at >= &__executable_start && at < &etext;
    all.push_back(known ? std::uintptr_t(at - &__executable_start) : 0);
  }
  return all;
}

std::string in_words(const Callers& callers) {
  std::ostringstream words;
  for (std::size_t i = 0; i < callers.size(); ++i) words << (i ? " " : "") << callers[i];
  return words.str();
}

/// Appended to the file if it was not seen before.
void write_once(const Callers& callers, const char* file) {
  static std::mutex guard;
  static auto& seen = *new std::set<Callers>;  // streams wait until the program has gone
  const std::lock_guard lock(guard);
  if (seen.insert(callers).second) std::ofstream(file, std::ios::app) << in_words(callers) << "\n";
}

std::vector<Callers> without() {
  std::vector<Callers> all;
  const char* const given = std::getenv("LAMINA_FAKE_WITHOUT");
  std::istringstream waits(given ? given : "");
  for (std::string wait; std::getline(waits, wait, ';');) {
    std::istringstream words(wait);
    all.emplace_back();
    for (std::uintptr_t caller; words >> caller;) all.back().push_back(caller);
  }
  return all;
}

}  // namespace

[[gnu::noinline]] bool left_out() {
  static const char* const file = std::getenv("LAMINA_FAKE_WAITS");
  static const auto& those = *new std::vector<Callers>(without());
  if (!file && those.empty()) return false;
  const Callers mine = callers();
  if (file) write_once(mine, file);
  return std::ranges::any_of(those, [&](const Callers& innermost) {
    return mine.size() >= innermost.size() &&
           std::equal(innermost.begin(), innermost.end(), mine.begin());
  });
}

}  // namespace lamina::test
