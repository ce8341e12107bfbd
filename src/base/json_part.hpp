// JsonPart: a part of a JSON file that knows where it lies, so that whatever is wrong with it can
// be named. It trusts nothing: types and ranges are checked, and nothing is converted in silence.
#pragma once

#include <lamina/base/error.hpp>

#include <nlohmann/json.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace lamina::detail {

/// Refers to the document, which must outlive it.
class JsonPart {
 public:
  using Json = nlohmann::ordered_json;

  /// The document itself. Throws Error for text that is not JSON, or far from any file of ours:
  /// nested deeply, or with so many members that looking one up would take long.
  static Json parse(const std::string& content);

  /// The same of what people write by hand, for messages `noun` ("plan"): no name is given twice,
  /// which the JSON library would drop in silence. Members of members are each a `member`, and of
  /// those an object has so many at most. Throws Error unless it is of this schema and version.
  static Json parse_written(const std::string& content, const char* noun, const char* schema,
                            int version, int deepest, const char* member = "",
                            std::size_t most = SIZE_MAX);

  explicit JsonPart(const Json& json, std::string place = {})
      : json_(&json), place_(std::move(place)) {}

  const Json& json() const { return *json_; }

  /// A member, which must be there.
  JsonPart at(const char* key) const;
  std::optional<JsonPart> find(const char* key) const;
  /// An element of a list.
  JsonPart at(std::size_t i) const;
  /// Of a list; throws for all else.
  std::size_t size() const;
  /// The same, and it must be `expected`, or nothing at all.
  std::size_t size_or_empty(std::size_t expected, const char* what) const;

  std::string string() const;
  double number(double low) const;
  std::int64_t whole(std::int64_t low, std::int64_t high) const;
  /// The i below `count` for which name_of(i) is this string.
  template <class NameOf>
  int one_of(int count, NameOf&& name_of) const {
    const std::string wanted = string();
    for (int i = 0; i < count; ++i)
      if (wanted == name_of(i)) return i;
    fail("a known name");
  }

  /// "rows[2].time_s.mean: expected ..., got ...", in one line.
  [[noreturn]] void fail(const std::string& expected) const;

 private:
  using Callback = std::function<bool(int depth, Json::parse_event_t event, Json& json)>;
  static Json parse(const std::string& content, const Callback& callback);

  const Json* json_;
  std::string place_;
};

/// Makes one line of no more than a few hundred characters of what a foreign file may have put in.
std::string one_line(std::string s);

}  // namespace lamina::detail
