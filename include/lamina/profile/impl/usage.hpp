// Sums and differences of what a rank has had of the processors.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/profile/usage.hpp>

namespace lamina {

namespace detail {

inline constexpr double Usage::*members_of_usage[] = {
    &Usage::processor, &Usage::switches, &Usage::denied, &Usage::stolen, &Usage::processors};

}  // namespace detail

LAMINA_INLINE Usage& Usage::operator+=(const Usage& more) {
  for (const auto member : detail::members_of_usage) {
    double& mine = this->*member;
    mine = mine < 0 || more.*member < 0 ? -1 : mine + more.*member;
  }
  return *this;
}

LAMINA_INLINE Usage Usage::operator-(const Usage& earlier) const {
  Usage difference = *this;
  for (const auto member : detail::members_of_usage)
    if (double& mine = difference.*member; mine >= 0) mine -= earlier.*member;
  return difference;
}

}  // namespace lamina
