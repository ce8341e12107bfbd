// What went wrong, as a text to compare.
#pragma once

#include <lamina/base/error.hpp>

#include <string>

namespace lamina::test {

/// What `work` throws, as one line; empty if it throws nothing. Other exceptions pass.
template <class Work>
std::string error_of(Work&& work) {
  try {
    work();
  } catch (const Error& e) {
    return e.what();
  }
  return {};
}

}  // namespace lamina::test
