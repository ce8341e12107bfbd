// JsonLog: a file with one JSON object per line, for plots and scripts that follow a training.
#pragma once

#include <lamina/base/file.hpp>
#include <lamina/base/text.hpp>

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

namespace lamina {

/// One field of a line: {"step", 3}, {"loss", 2.5}, {"kind", "evaluation"}, {"last", true},
/// {"workers", Shares{3, 1}}.
class JsonField {
 public:
  template <std::integral T>
  JsonField(std::string_view name, T value) : name_(name), json_(lamina::text(value)) {}
  template <std::floating_point T>
  JsonField(std::string_view name, T value) : name_(name), json_(number(double(value))) {}
  JsonField(std::string_view name, std::string_view value) : name_(name), json_(quoted(value)) {}
  JsonField(std::string_view name, const char* value) : JsonField(name, std::string_view(value)) {}
  JsonField(std::string_view name, const std::string& value)
      : JsonField(name, std::string_view(value)) {}
  JsonField(std::string_view name, std::span<const int> values) : name_(name), json_("[") {
    for (const int value : values) json_ += (json_.size() > 1 ? ", " : "") + std::to_string(value);
    json_ += ']';
  }

  std::string text() const { return quoted(name_) + ": " + json_; }

 private:
  /// The shortest digits that read back as the same value; null for NaN and infinities.
  static std::string number(double);
  static std::string quoted(std::string_view);

  std::string_view name_;
  std::string json_;
};

class JsonLog {
 public:
  /// Opens the file, or makes it, and keeps others from doing so until this goes. What is in it
  /// stays, unless `append` is false. Throws Error if it cannot be opened, or if another process
  /// has it open.
  explicit JsonLog(const std::string& path, bool append = true);

  /// Removes what is in it.
  void restart();
  /// Removes everything from the first line of a step after `step` on, and a last line that is not
  /// whole: so that a training which goes on from that step has each step once. A change of ranks
  /// (`ranks_before`) after `step` goes, too, with what follows, and with `evaluation_due` whatever
  /// follows the first line of `step`. Throws Error if it is no log.
  void resume_at(std::int64_t step, bool evaluation_due = false);
  /// False where the file system has no locks: others are not kept away.
  bool locked() const { return locked_; }

  /// One line, which is in the file when this returns. Throws Error if the disk is full, say.
  void write(std::span<const JsonField> fields);
  void write(std::initializer_list<JsonField> fields) { write({fields.begin(), fields.size()}); }

 private:
  File file_;
  bool regular_ = true;  // not a pipe or a device, which several may write, and which is not cut
  bool locked_ = true;
};

}  // namespace lamina
