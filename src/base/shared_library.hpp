// SharedLibrary: a library of the system's that is opened when somebody asks for it, so that a
// program also starts where it is absent.
#pragma once

#include <span>
#include <string>

namespace lamina::detail {

/// A function of whatever type is wanted.
struct AnyFunction {
  void (*address)();
  template <class F>
  operator F*() const {
    return reinterpret_cast<F*>(address);
  }
};

/// Move-only; closes it when it goes.
class SharedLibrary {
 public:
  /// Opens the first of these that there is: a name, which the system looks for, or a path. Throws
  /// Error where there is none.
  explicit SharedLibrary(std::span<const std::string> names);
  SharedLibrary(SharedLibrary&& other) noexcept;
  SharedLibrary& operator=(SharedLibrary&& other) noexcept;
  ~SharedLibrary();

  /// That of the names which was opened.
  const std::string& name() const { return name_; }
  /// Throws Error where it has no such function.
  AnyFunction function(const char* name) const;

 private:
  std::string name_;
  void* handle_ = nullptr;
};

}  // namespace lamina::detail
