// text(): concatenates values into a string. Small on purpose: error messages and tables need no
// formatting library, and the headers stay quick to compile.
#pragma once

#include <charconv>
#include <concepts>
#include <cstdio>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace lamina {

/// One thing to be said: a string, a character, a number, or anything with a member
/// `std::string text() const` (Shape, Split, ...). One type for all of them, so that each call of
/// text() or check() costs the compiler little.
class Word {
 public:
  Word(std::string_view s) : view_(s) {}
  Word(const char* s) : view_(s) {}
  Word(const std::string& s) : view_(s) {}
  Word(char c) : owned_(1, c), view_(owned_) {}
  Word(bool b) : view_(b ? "true" : "false") {}
  template <std::integral T>
  Word(T n)
      : Word(std::is_signed_v<T> ? whole(static_cast<long long>(n))
                                 : whole(static_cast<unsigned long long>(n))) {}
  template <std::floating_point T>
  Word(T x) : Word(real(double(x))) {}
  template <class T>
  requires requires(const T& value) {
    { value.text() } -> std::convertible_to<std::string>;
  }
  Word(const T& value) : Word(value.text()) {}
  Word(std::string&& s) : owned_(std::move(s)), view_(owned_) {}
  Word(const Word&) = delete;

  std::string_view view() const { return view_; }

 private:
  template <class T>
  static std::string whole(T n) {
    char buffer[24];
    return {buffer, std::to_chars(buffer, buffer + sizeof buffer, n).ptr};
  }
  static std::string real(double x) {
    char buffer[32];
    std::snprintf(buffer, sizeof buffer, "%.6g", x);
    return buffer;
  }

  std::string owned_;
  std::string_view view_;
};

inline void append(std::string& to, const Word& part) { to += part.view(); }

namespace detail {
inline std::string join(std::initializer_list<Word> parts) {
  std::string to;
  for (const Word& part : parts) to += part.view();
  return to;
}
}  // namespace detail

/// The parts one after the other.
template <class... Parts>
std::string text(const Parts&... parts) {
  return detail::join({Word(parts)...});
}

/// "a, b, c".
template <class Items>
std::string in_words(const Items& items) {
  std::string to;
  for (const auto& item : items) append(to, text(to.empty() ? "" : ", ", item));
  return to;
}

/// The shortest digits that read back as the same value: what is not the same does not look it.
inline std::string exact(double value) {
  char buffer[32];
  return {buffer, std::to_chars(buffer, buffer + sizeof buffer, value).ptr};
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

/// "12.3 MB", or "2.10 GB".
inline std::string in_bytes(double bytes) {
  return bytes < 1e9 ? format("%.1f MB", bytes / 1e6) : format("%.2f GB", bytes / 1e9);
}

}  // namespace lamina
