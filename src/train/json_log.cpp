// JsonLog, with the JSON library's idea of numbers and strings.
#include <lamina/base/error.hpp>
#include <lamina/train/json_log.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>

namespace lamina {

JsonLog::JsonLog(const std::string& path, bool append) : file_(path, File::Mode::append) {
  regular_ = std::filesystem::is_regular_file(path);
  if (!regular_) return;
  const File::Lock lock = file_.lock();
  check(lock != File::Lock::anothers, path, ": another job is writing it");
  locked_ = lock == File::Lock::mine;
  if (!append) restart();
}

void JsonLog::restart() {
  if (regular_) file_.cut(0);
}

void JsonLog::resume_at(std::int64_t step, bool evaluation_due) {
  if (!regular_) return;
  const File file(file_.path(), File::Mode::read);
  const std::uint64_t size = file.size();
  std::uint64_t read = 0, whole = 0;  // bytes: read; up to the end of the last line that stays
  std::int64_t line = 1;
  std::string rest;  // what is read behind `whole`
  const auto check_log = [&](bool is_one) {
    check(is_one, file.path(), ": line ", line, " is no JSON object: expected a log");
  };
  // What a crash may leave of a line, or in place of it.
  const auto part_of_line = [](char first) { return first == '{' || first == 0; };
  bool damaged = false, done = false;
  while (read < size) {
    const std::size_t more = std::size_t(std::min<std::uint64_t>(size - read, 1 << 20));
    rest.resize(rest.size() + more);
    file.read(rest.data() + rest.size() - more, more, read);
    read += more;
    std::size_t at = 0;
    for (std::size_t end; (end = rest.find('\n', at)) != rest.npos; at = end + 1) {
      check_log(!damaged);  // only the last line may be
      const auto value = nlohmann::json::parse(rest.begin() + std::ptrdiff_t(at),
                                               rest.begin() + std::ptrdiff_t(end), nullptr, false);
      damaged = !value.is_object();
      check_log(!damaged || part_of_line(rest[at]));
      if (damaged) continue;
      if (const auto s = value.find("step"); s != value.end() && s->is_number_integer()) {
        const auto its = s->get<std::int64_t>();
        const bool undone = done || value.contains("ranks_before") ||  // come after a checkpoint
                            (evaluation_due && value.contains("validation_loss"));
        if (its > step || (its == step && undone)) return file_.cut(whole);
        done = evaluation_due && its == step;
      }
      whole += end + 1 - at, ++line;
    }
    rest.erase(0, at);
  }
  check_log(rest.empty() || part_of_line(rest[0]));
  file_.cut(whole);
}

std::string JsonField::number(double value) { return nlohmann::json(value).dump(); }

std::string JsonField::quoted(std::string_view value) {
  // Bytes that are no UTF-8 (a path, perhaps) must not end a training.
  return nlohmann::json(value).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void JsonLog::write(std::span<const JsonField> fields) {
  std::string line;
  for (const JsonField& field : fields) line += (line.empty() ? "{" : ", ") + field.text();
  line += line.empty() ? "{}\n" : "}\n";
  file_.write(line.data(), line.size());  // at once, so that a reader sees whole lines
}

}  // namespace lamina
