// What ranks tell each other when a profile is made: lists of plain structs, as bytes.
#pragma once

#include <cstring>
#include <string>
#include <vector>

namespace lamina::detail {

template <class T>
std::string pack(const std::vector<T>& list) {
  std::string bytes(list.size() * sizeof(T), '\0');
  if (!list.empty()) std::memcpy(bytes.data(), list.data(), bytes.size());
  return bytes;
}

/// Of each rank.
template <class T>
std::vector<std::vector<T>> unpack(const std::vector<std::string>& packed) {
  std::vector<std::vector<T>> all;
  for (const std::string& s : packed) {
    all.emplace_back(s.size() / sizeof(T));
    if (!s.empty()) std::memcpy(all.back().data(), s.data(), s.size());
  }
  return all;
}

}  // namespace lamina::detail
