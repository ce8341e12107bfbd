// Error: the one exception of the library, and check(), the one way to throw it.
#pragma once

#if defined(__clang__) ? __clang_major__ < 16 : __GNUC__ < 12
#error "Lamina needs GCC 12, or clang 16, or newer"
#endif

#include <lamina/base/text.hpp>

#include <source_location>
#include <stdexcept>
#include <string>

namespace lamina {

/// What went wrong, in one line that names the thing and says what was expected.
/// `where()` is the place in the source that noticed it.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& what,
                 std::source_location where = std::source_location::current())
      : std::runtime_error(what), where_(where) {}

  const std::source_location& where() const noexcept { return where_; }

 private:
  std::source_location where_;
};

namespace detail {
[[noreturn]] inline void fail(std::initializer_list<Word> parts) { throw Error(join(parts)); }
}  // namespace detail

/// Throws Error with the concatenation of `parts` unless `condition` holds:
/// `check(x.c == c, name, ": expected ", c, " channels, got ", x.c);`
template <class... Parts>
void check(bool condition, const Parts&... parts) {
  if (!condition) [[unlikely]]
    detail::fail({Word(parts)...});
}

}  // namespace lamina
