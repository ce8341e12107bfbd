// Where operands of bf16 lie in f32 while a kernel runs.
#pragma once

#include "cpu/onednn_core.hpp"

#include <initializer_list>
#include <vector>

namespace lamina::detail {

inline void widen(const View& from, const View& to) {
  convert(from.as<const BF16>(), to.as<float>(), to.bytes() / sizeof(float));
}
inline void round(const View& from, const View& to) {
  convert(from.as<const float>(), to.as<BF16>(), from.bytes() / sizeof(float));
}

/// Operands in f32, one behind the other in memory that all kernels of a back end share.
class Room {
 public:
  Room() = default;
  Room(RuntimePtr runtime, std::initializer_list<Form> forms) : runtime_(std::move(runtime)) {
    for (const Form& form : forms) {
      places_.push_back({form, end_});
      end_ += (form.bytes() + 63) / 64 * 64;
    }
    runtime_->reserve_wide(end_);
  }

  View operator[](std::size_t i) const {
    return runtime_->wide.view().at(places_[i].at, places_[i].form);
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
