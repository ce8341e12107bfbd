// Where operands of bf16 lie in f32 while a kernel runs.
#pragma once

#include "cpu/onednn_core.hpp"

#include <vector>

namespace lamina::detail {

inline void widen(const View& from, const View& to) {
  convert(from.as<const BF16>(), to.as<float>(), to.bytes() / sizeof(float));
}
inline void round(const View& from, const View& to) {
  convert(from.as<const float>(), to.as<BF16>(), from.bytes() / sizeof(float));
}

/// Operands in f32, one behind the other in the scratchpad, behind what the kernel itself takes.
class Room {
 public:
  Room() = default;
  Room(RuntimePtr runtime, std::size_t taken, const std::vector<Form>& forms)
      : runtime_(std::move(runtime)), end_(aligned(taken)) {
    for (const Form& form : forms) {
      places_.push_back({form, end_});
      end_ += aligned(form.bytes());
    }
    runtime_->reserve(end_);
  }
  std::size_t end() const { return end_; }  ///< bytes of the scratchpad in use

  View operator[](std::size_t i) const {
    return runtime_->scratch().at(places_[i].at, places_[i].form);
  }

 private:
  struct Place {
    Form form;
    std::size_t at;
  };

  RuntimePtr runtime_;
  std::vector<Place> places_;
  std::size_t end_ = 0;
};

}  // namespace lamina::detail
