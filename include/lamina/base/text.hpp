// text(): concatenates values into a string. Small on purpose: error messages and tables need no
// formatting library, and the headers stay quick to compile.
#pragma once

#include <charconv>
#include <concepts>
#include <cstdio>
#include <string>
#include <string_view>

namespace lamina {

inline void append(std::string& to, std::string_view part) { to += part; }
inline void append(std::string& to, char part) { to += part; }

template <std::integral T>
void append(std::string& to, T part) {
  if constexpr (std::same_as<T, bool>) {
    to += part ? "true" : "false";
  } else {
    char buffer[24];
    to.append(buffer, std::to_chars(buffer, buffer + sizeof buffer, part).ptr);
  }
}

template <std::floating_point T>
void append(std::string& to, T part) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.6g", double(part));
  to += buffer;
}

/// Anything with a member `std::string text() const` (Shape, Split, ...).
template <class T>
requires requires(const T& value) {
  { value.text() } -> std::convertible_to<std::string>;
}
void append(std::string& to, const T& part) { to += part.text(); }

/// The parts one after the other: strings, numbers, and types with a `text()` member.
template <class... Parts>
std::string text(const Parts&... parts) {
  std::string to;
  (append(to, parts), ...);
  return to;
}

/// `std::cout << value` for anything with a `text()` member: Shape, Epoch, Profile ...
template <class Out, class T>
requires requires(Out& out, const T& value, const std::string& s) {
  out << s;
  { value.text() } -> std::convertible_to<std::string>;
}
Out& operator<<(Out& out, const T& value) {
  out << value.text();
  return out;
}

/// printf into a string, for tables.
template <class... Values>
std::string format(const char* pattern, Values... values) {
  char small[256];
  const int n = std::snprintf(small, sizeof small, pattern, values...);
  if (n < int(sizeof small)) return std::string(small, n < 0 ? 0 : std::size_t(n));
  std::string big(std::size_t(n), '\0');
  std::snprintf(big.data(), big.size() + 1, pattern, values...);
  return big;
}

}  // namespace lamina
