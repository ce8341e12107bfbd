// Facts of all ranks: first their digests are compared, then, where those differ, the facts.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/base/random.hpp>
#include <lamina/comm/alike.hpp>

#include <charconv>
#include <map>
#include <optional>

namespace lamina {

namespace detail::facts {

/// Fields with their lengths in front, so that any text may be in them.
inline std::string packed(const std::vector<Fact>& facts) {
  std::string s;
  for (const Fact& f : facts)
    for (const std::string* field : {&f.name, &f.value})
      append(s, text(field->size(), ' ')), s += *field;
  return s;
}

inline std::vector<Fact> unpacked(std::string_view s) {
  std::vector<Fact> facts;
  const auto field = [&] {
    std::size_t size = 0;
    const char* digits_end = std::from_chars(s.data(), s.data() + s.size(), size).ptr;
    s.remove_prefix(std::size_t(digits_end - s.data()) + 1);
    const std::string taken(s.substr(0, size));
    s.remove_prefix(taken.size());
    return taken;
  };
  while (!s.empty()) {
    std::string name = field();
    facts.push_back({std::move(name), field()});
  }
  return facts;
}

/// "rank 1", "ranks 1 and 3", "ranks 1, 2, 5, ..."
inline std::string ranks_text(const std::vector<std::size_t>& ranks) {
  constexpr std::size_t shown = 3;
  std::string s = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size() && i < shown; ++i)
    append(s, text(i == 0                                           ? ""
                   : i + 1 == ranks.size() && ranks.size() <= shown ? " and "
                                                                    : ", ",
                   ranks[i]));
  return ranks.size() > shown ? s + ", ..." : s;
}

/// What one fact is on rank 0, and on those that say otherwise; empty where none does.
inline std::string difference(const std::string& name,
                              const std::vector<std::map<std::string, std::string>>& facts) {
  const auto value_on = [&](std::size_t rank) -> std::optional<std::string> {
    const auto at = facts[rank].find(name);
    return at == facts[rank].end() ? std::nullopt : std::optional(at->second);
  };
  const auto in_words = [](const std::optional<std::string>& value) {
    return !value ? "missing" : value->empty() ? "empty" : *value;
  };
  const auto first = value_on(0);
  std::vector<std::pair<std::optional<std::string>, std::vector<std::size_t>>> others;
  for (std::size_t r = 1; r < facts.size(); ++r) {
    const auto value = value_on(r);
    if (value == first) continue;
    auto same = others.begin();
    while (same != others.end() && same->first != value) ++same;
    if (same == others.end()) same = others.insert(same, {value, {}});
    same->second.push_back(r);
  }
  if (others.empty()) return {};
  std::string s = text(name, " is ", in_words(first), " on rank 0");
  for (const auto& [value, ranks] : others)
    append(s, text(", but ", in_words(value), " on ", ranks_text(ranks)));
  return s;
}

}  // namespace detail::facts

LAMINA_INLINE void check_alike(const Communicator& ranks, const std::vector<Fact>& mine) {
  if (ranks.size() == 1) return;
  const std::string all_mine = detail::facts::packed(mine);
  const auto digests = ranks.all_gather_value(key_of(all_mine));
  if (std::count(digests.begin(), digests.end(), digests[0]) == std::ptrdiff_t(digests.size()))
    return;
  std::vector<std::string> names;  // in the order in which they are stated
  std::vector<std::map<std::string, std::string>> facts;
  for (const std::string& theirs : ranks.all_gather_text(all_mine)) {
    facts.emplace_back();
    for (Fact& f : detail::facts::unpacked(theirs)) {
      if (std::find(names.begin(), names.end(), f.name) == names.end()) names.push_back(f.name);
      facts.back()[f.name] = std::move(f.value);
    }
  }
  constexpr int shown = 3;
  std::string unlike;
  int found = 0;
  for (const std::string& name : names) {
    const std::string what = detail::facts::difference(name, facts);
    if (!what.empty() && ++found <= shown) append(unlike, text(found > 1 ? "; " : "", what));
  }
  if (found == 0) unlike = "they state the same in another order, as of layers";
  if (found > shown) append(unlike, text("; and ", found - shown, " more"));
  throw Error(text("the ranks were started unlike: ", unlike));
}

LAMINA_INLINE std::string on_first(const Communicator& ranks,
                                   const std::function<std::string()>& work) {
  std::string answer = "e";  // then what went wrong; or "r" and the result
  if (ranks.rank() == 0) {
    try {
      answer = "r" + work();
    } catch (const std::exception& e) {
      answer += e.what();
    }
  }
  answer = ranks.broadcast_text(std::move(answer));
  if (answer[0] == 'e') throw Error(answer.substr(1));
  return answer.substr(1);
}

}  // namespace lamina
