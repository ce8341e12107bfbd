// ProgressBar: how a training goes, for a person: a bar on a terminal, plain lines elsewhere.
#pragma once

#include "terminal.hpp"

#include <lamina/train/trainer.hpp>

#include <cstdio>
#include <string>

namespace lamina::cli {

/// "1:02:03", "2:03"; seconds rounded up.
inline std::string duration(double seconds) {
  const auto s = static_cast<long long>(std::ceil(std::max(0.0, seconds)));
  return s >= 3600 ? format("%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60)
                   : format("%lld:%02lld", s / 60, s % 60);
}

class ProgressBar {
 public:
  ProgressBar(bool shown, std::int64_t total)
      : shown_(shown), columns_(shown ? terminal_columns() : 0), total_(total), start_(now()) {}
  ~ProgressBar() { say(""); }  // an error is about to be printed, perhaps

  void step(const StepResult& r, std::int64_t batch) {
    if (!shown_) return;
    if (first_ < 0) first_ = r.step - 1;
    images_ += batch, seconds_ += r.seconds;
    // Exponentially forgotten, so that the figure follows the run without jumping.
    loss_ = loss_ < 0 ? r.loss : 0.95 * loss_ + 0.05 * r.loss;
    const double t = now();
    const bool last = r.index == r.count || r.step == total_;
    if (t - printed_ < (columns_ > 0 ? 0.1 : 10) && !last) return;
    printed_ = t;
    const double left = (t - start_) / double(r.step - first_) * double(total_ - r.step);
    const std::string line =
        format("epoch %lld  %*lld/%lld  loss %.4f  %.1f images/s  %s left",
               static_cast<long long>(r.epoch + 1), int(lamina::text(r.count).size()),
               static_cast<long long>(r.index), static_cast<long long>(r.count), loss_,
               double(images_) / seconds_, duration(left).c_str()) +
        (r.loss_scale ? "  " + r.loss_scale->text() : std::string());
    if (columns_ == 0) {
      std::printf("%s\n", line.c_str());
    } else {  // a wrapped line could not be overwritten
      const int width = std::min(24, columns_ - int(line.size()) - 4);
      std::string bar;
      if (width >= 4) {
        const auto done = std::size_t(width * r.index / r.count);
        bar = text('[', std::string(done, '#'), std::string(std::size_t(width) - done, '.'), "] ");
      }
      open_ = true;
      std::printf("\r%.*s\033[K", columns_ - 1, (bar + line).c_str());
    }
    std::fflush(stdout);
  }

  /// A line that stays, in place of the bar.
  void say(const std::string& line) {
    if (!shown_) return;
    std::printf("%s%s", open_ ? "\r\033[K" : "", line.c_str());
    std::fflush(stdout);
    open_ = false;
  }

 private:
  bool shown_, open_ = false;  // open: the cursor is behind the bar
  int columns_;                // of the terminal; 0 = none
  std::int64_t total_, first_ = -1, images_ = 0;
  double start_, printed_ = 0, seconds_ = 0, loss_ = -1;
};

}  // namespace lamina::cli
