// Which elements dropout keeps. Every back end asks here, so that the masks are the same on all.
#pragma once

#include <lamina/base/random.hpp>

namespace lamina {

class DropoutMask {
 public:
  /// `skip`: elements of the whole tensor before the first one that is asked for.
  DropoutMask(double rate, std::uint64_t key, std::uint64_t skip)
      : random_(key), rate_(rate), skip_(skip) {}

  /// Whether the element stays; `index` counts the elements of the whole tensor in n-c-h-w order.
  bool keeps(std::uint64_t index) const { return random_.uniform(skip_ + index) >= rate_; }

 private:
  Random random_;
  double rate_;
  std::uint64_t skip_;
};

}  // namespace lamina
