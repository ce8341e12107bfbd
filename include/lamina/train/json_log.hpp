// JsonLog: a file with one JSON object per line, for plots and scripts that follow a training.
#pragma once

#include <lamina/base/file.hpp>
#include <lamina/base/text.hpp>

#include <concepts>
#include <initializer_list>
#include <string>
#include <string_view>

namespace lamina {

/// One field of a line: {"step", 3}, {"loss", 2.5}, {"kind", "evaluation"}, {"last", true}.
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
  /// Appends to the file if it is there, or starts it anew. Throws Error if it cannot be opened.
  explicit JsonLog(const std::string& path, bool append = true)
      : file_(path, append ? File::Mode::append : File::Mode::create) {}

  /// One line, which is in the file when this returns. Throws Error if the disk is full, say.
  void write(std::initializer_list<JsonField> fields);

 private:
  File file_;
};

}  // namespace lamina
