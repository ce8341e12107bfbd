// JsonPart: what is checked, and how it is said.
#include "base/json_part.hpp"

#include <set>
#include <vector>

namespace lamina::detail {

JsonPart::Json JsonPart::parse(const std::string& content, const Callback& callback) {
  try {
    return Json::parse(content, callback);
  } catch (const Json::parse_error& e) {
    throw Error(text("not valid JSON, near byte ", e.byte));
  } catch (const Json::exception&) {  // a number beyond all doubles
    throw Error("not valid JSON: a number is too large");
  }
}

JsonPart::Json JsonPart::parse(const std::string& content) {
  constexpr int deepest = 16, most = 64;
  std::vector<int> members;  // of the objects that are open, by depth
  return parse(content, [&](int depth, Json::parse_event_t event, Json&) {
    check(depth < deepest, "nested more than ", deepest, " levels deep");
    const auto at = std::size_t(depth);
    if (event == Json::parse_event_t::object_start) members.resize(at + 1), members[at] = 0;
    if (event == Json::parse_event_t::key)
      check(++members[at - 1] <= most, "an object with more than ", most, " members");
    return true;
  });
}

JsonPart::Json JsonPart::parse_written(const std::string& content, const char* noun,
                                       const char* schema, int version, int deepest,
                                       const char* member, std::size_t most) {
  std::vector<std::set<std::string>> keys;  // of the objects that are open, by depth
  Json j = parse(content, [&](int depth, Json::parse_event_t event, Json& json) {
    check(depth < deepest, "not a ", noun, ": nested more than ", deepest, " levels deep");
    const auto at = std::size_t(depth);
    if (event == Json::parse_event_t::object_start) keys.resize(at), keys.push_back({});
    if (event == Json::parse_event_t::key) {
      const auto name = json.get<std::string>();
      check(keys[at - 1].insert(name).second, "'", one_line(name), "' is given twice");
      check(keys[at - 1].size() <= most, "more than ", most, ' ', member, 's');
    }
    return true;
  });
  check(j.is_object() && j.contains("schema") && j["schema"] == schema, "not a ", noun,
        ": expected schema '", schema, "'");
  if (const JsonPart v = JsonPart(j).at("version"); v.json() != version)
    v.fail(text(version, ", of the ", noun, " schema"));
  return j;
}

JsonPart JsonPart::at(const char* key) const {
  if (!json_->is_object()) fail("an object");
  const auto found = json_->find(key);
  if (found == json_->end())
    throw Error(text(place_, place_.empty() ? "" : ": ", "expected a member '", key, "'"));
  return JsonPart(*found, place_.empty() ? key : text(place_, '.', key));
}

std::optional<JsonPart> JsonPart::find(const char* key) const {
  if (!json_->is_object()) fail("an object");
  if (!json_->contains(key)) return std::nullopt;
  return at(key);
}

JsonPart JsonPart::at(std::size_t i) const {
  if (i >= size()) fail(text("more than ", i, " elements"));
  return JsonPart((*json_)[i], text(place_, '[', i, ']'));
}

std::size_t JsonPart::size() const {
  if (!json_->is_array()) fail("a list");
  return json_->size();
}

std::size_t JsonPart::size_or_empty(std::size_t expected, const char* what) const {
  const std::size_t n = size();
  if (n != 0 && n != expected) fail(text("one element for each of ", expected, ' ', what));
  return n;
}

std::string JsonPart::string() const {
  if (!json_->is_string()) fail("a string");
  return json_->get<std::string>();
}

double JsonPart::number(double low) const {
  const double x = json_->is_number() ? json_->get<double>() : low - 1;
  if (json_->is_number() && x >= low) return x;
  fail(low <= -1e300 ? std::string("a number") : text("a number of at least ", low));
}

std::int64_t JsonPart::whole(std::int64_t low, std::int64_t high) const {
  const bool beyond = json_->is_number_unsigned() && json_->get<std::uint64_t>() > INT64_MAX;
  if (json_->is_number_integer() && !beyond) {
    const auto i = json_->get<std::int64_t>();
    if (i >= low && i <= high) return i;
  }
  fail(high == INT64_MAX ? text("a whole number of at least ", low)
                         : text("a whole number from ", low, " to ", high));
}

void JsonPart::fail(const std::string& expected) const {
  const std::string got =
      json_->is_structured() ? (json_->is_array() ? text("a list of ", json_->size()) : "an object")
                             : json_->dump();
  throw Error(
      one_line(text(place_, place_.empty() ? "" : ": ", "expected ", expected, ", got ", got)));
}

std::string one_line(std::string s) {
  for (char& c : s)
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = ' ';
  constexpr std::size_t longest = 300;
  if (s.size() > longest) s.resize(longest), s += "...";
  return s;
}

}  // namespace lamina::detail
