// naming: says in front of an error what it is about.
#pragma once

#include <lamina/base/error.hpp>

#include <string_view>
#include <typeinfo>

namespace lamina {

/// Runs `work`; an Error that passes by gets "`what`: " in front, or `what` and another `mark`. One
/// of a derived class stays as it is, since that is caught by its class.
template <class Work>
decltype(auto) naming(std::string_view what, Work&& work, std::string_view mark = ": ") {
  try {
    return work();
  } catch (const Error& e) {
    if (typeid(e) != typeid(Error)) throw;
    throw Error(text(what, mark, e.what()), e.where());
  }
}

}  // namespace lamina
