// GpuName: the name of a back end of GPUs, which says which of them, and what its kernels may do.
#pragma once

#include <lamina/base/text.hpp>
#include <lamina/kernels/choice.hpp>

#include <charconv>
#include <optional>
#include <string>
#include <string_view>

namespace lamina {

/// "cuda", "cuda:1", "cuda:tf32", "cuda:1:tf32:deterministic:workspace=268435456": words behind
/// colons, in any order.
struct GpuName {
  int number = -1;  ///< of a GPU; -1 where none is named
  Demands demands = {};

  /// Nothing where it is another name.
  static std::optional<GpuName> of(std::string_view name) {
    constexpr std::string_view all = "cuda";
    if (!name.starts_with(all)) return {};
    GpuName found;
    for (std::string_view rest = name.substr(all.size()); !rest.empty();) {
      if (rest[0] != ':') return {};
      const std::size_t end = std::min(rest.find(':', 1), rest.size());
      if (!found.take(rest.substr(1, end - 1))) return {};
      rest.remove_prefix(end);
    }
    return found;
  }

  std::string text() const {
    return lamina::text("cuda", number < 0 ? std::string() : lamina::text(':', number), demands);
  }

 private:
  template <class N>
  static bool whole(std::string_view digits, N& to) {
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), to);
    return error == std::errc() && end == digits.data() + digits.size() && digits[0] != '-';
  }
  bool take(std::string_view word) {
    constexpr std::string_view limit = "workspace=";
    if (word == "tf32") return demands.tf32 = true;
    if (word == "deterministic") return demands.deterministic = true;
    if (word.starts_with(limit)) return whole(word.substr(limit.size()), demands.most_workspace);
    return number < 0 && whole(word, number);
  }
};

}  // namespace lamina
