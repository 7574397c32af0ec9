// SPDX-License-Identifier: Apache-2.0
#include "tutti/runtime/ordering.hpp"

#include <cerrno>

namespace tutti::runtime {

int HostWordDependency::query() noexcept {
  const std::uint64_t ahead = word_.load(std::memory_order_acquire) - value_;
  return static_cast<std::int64_t>(ahead) >= 0 ? 0 : EAGAIN;
}

void HostWordGate::open(std::int32_t status) noexcept {
  status_.store(static_cast<std::uint64_t>(status), std::memory_order_relaxed);
  word_.store(value_, std::memory_order_release);
}

}  // namespace tutti::runtime
