#include "base/shared_library.hpp"

#include <lamina/base/error.hpp>

#include <dlfcn.h>

#include <utility>

namespace lamina::detail {

SharedLibrary::SharedLibrary(std::span<const std::string> names) {
  std::string reasons;  // dlerror's, each of which begins with the name
  for (const std::string& name : names) {
    // Found are all its functions at once, so that what it lacks itself is told here.
    handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_) {
      name_ = name;
      return;
    }
    append(reasons, text(reasons.empty() ? "" : "; ", dlerror()));
  }
  throw Error(text("no such library: ", reasons));
}

SharedLibrary::SharedLibrary(SharedLibrary&& other) noexcept
    : name_(std::move(other.name_)), handle_(std::exchange(other.handle_, nullptr)) {}

SharedLibrary& SharedLibrary::operator=(SharedLibrary&& other) noexcept {
  std::swap(name_, other.name_);
  std::swap(handle_, other.handle_);
  return *this;
}

SharedLibrary::~SharedLibrary() {
  if (handle_) dlclose(handle_);
}

AnyFunction SharedLibrary::function(const char* name) const {
  void* const found = dlsym(handle_, name);
  check(found, "the library ", name_, " has no function ", name);
  return {reinterpret_cast<void (*)()>(found)};
}

}  // namespace lamina::detail
