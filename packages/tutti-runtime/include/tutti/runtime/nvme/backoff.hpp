// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>

namespace tutti::runtime::nvme {

/// How a thread waits for memory that another agent writes: it spins for some microseconds, then lets others
/// run, then sleeps, longer and longer.
class Backoff {
 public:
  /// `longest` bounds one sleep, and so how late the end of a long wait is seen.
  explicit Backoff(std::chrono::microseconds longest = std::chrono::microseconds(500)) : longest_(longest) {}

  void reset() noexcept { rounds_ = 0; }

  void pause() {
    constexpr std::uint32_t spins = 64;
    constexpr std::uint32_t yields = 2048;
    ++rounds_;
    if (rounds_ < spins) {
      return;
    }
    if (rounds_ < yields) {
      ::sched_yield();
      return;
    }
    const std::chrono::microseconds nap((rounds_ - yields) / 16 + 20);
    std::this_thread::sleep_for(std::min(nap, longest_));
  }

 private:
  const std::chrono::microseconds longest_;
  std::uint32_t rounds_ = 0;
};

}  // namespace tutti::runtime::nvme
