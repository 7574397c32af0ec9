// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "tutti/runtime/nvme/queue_pair.hpp"
#include "tutti/runtime/ordering.hpp"

namespace tutti::runtime::nvme {

/// The admin queue: one command at a time, and the caller waits for it. Not thread-safe.
class AdminQueue {
 public:
  static constexpr std::uint32_t kDepth = 32;

  AdminQueue(Transport& transport, std::uint32_t doorbell_stride)
      : transport_(transport), queue_(transport, 0, kDepth, doorbell_stride) {}

  /// @throws CommandFailed: with its status; ETIMEDOUT when no answer came in `timeout`; ENODEV for a device
  /// that is gone; EIO for one with a fatal error or that was reset.
  Completion execute(const Command& command, const char* what, Duration timeout);

  [[nodiscard]] QueuePair& queue() noexcept { return queue_; }

 private:
  Transport& transport_;
  QueuePair queue_;
};

/// 0 for a controller that is ready; ENODEV when it is gone, EIO after a fatal error or a reset of its own.
[[nodiscard]] int check_alive(Transport& transport);

}  // namespace tutti::runtime::nvme
