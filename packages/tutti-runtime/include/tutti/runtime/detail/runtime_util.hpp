// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "tutti/runtime/error.hpp"
#include "tutti/runtime/ordering.hpp"

namespace tutti::runtime::detail {

inline constexpr Duration kForever{1e9};  // about 30 years; a time_point cannot hold every double

[[nodiscard]] inline TimePoint deadline_after(Duration timeout) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::min(timeout, kForever));
}

[[noreturn]] inline void bad_handle(const char* kind, std::uint64_t handle) {
  throw InvalidHandle(
      std::string(kind) + " handle " + std::to_string(handle) +
      " is not one of this runtime's: it was given up, consumed, or comes from another runtime");
}

}  // namespace tutti::runtime::detail
