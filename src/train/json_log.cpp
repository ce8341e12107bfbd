// JsonLog, with the JSON library's idea of numbers and strings.
#include <lamina/train/json_log.hpp>

#include <nlohmann/json.hpp>

namespace lamina {

std::string JsonField::number(double value) { return nlohmann::json(value).dump(); }

std::string JsonField::quoted(std::string_view value) {
  // Bytes that are no UTF-8 (a path, perhaps) must not end a training.
  return nlohmann::json(value).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void JsonLog::write(std::initializer_list<JsonField> fields) {
  std::string line;
  for (const JsonField& field : fields) line += (line.empty() ? "{" : ", ") + field.text();
  line += line.empty() ? "{}\n" : "}\n";
  file_.write(line.data(), line.size());  // at once, so that a reader sees whole lines
}

}  // namespace lamina
