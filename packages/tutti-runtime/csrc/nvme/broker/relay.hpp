// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "tutti/runtime/nvme/transport.hpp"

namespace tutti::runtime::nvme::broker {

/// Carries doorbells from pages that clients write to the controller's registers. A client's page has the
/// doorbells of that client alone, whatever page of the device they are on. Thread-safe.
class Relay {
 public:
  Relay(Transport& transport, std::uint32_t doorbell_stride);
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  /// Completion queue `id` begins: its head in `word` is carried from now on. Sets the word to 0.
  void begin_cq(std::uint16_t id, std::uint32_t depth, std::uint32_t* word);
  /// Submission queue `id`, whose completion queue has begun.
  void begin_sq(std::uint16_t id, std::uint32_t depth, std::uint32_t* word);
  /// Once these have returned, nothing of the queue is read or carried any more.
  void end_sq(std::uint16_t id);
  void end_cq(std::uint16_t id);
  void end_all();

  /// Values that no queue of that depth can have. They were not carried.
  [[nodiscard]] std::uint64_t refused() const noexcept { return refused_.load(std::memory_order_relaxed); }

 private:
  struct Side {
    std::uint32_t* from = nullptr;  ///< null: not begun
    std::uint32_t* to = nullptr;    ///< null: by write32()
    std::uint32_t offset = 0;
    std::uint32_t depth = 0;
    std::uint32_t last = 0;
  };
  struct Lane {
    std::uint16_t id = 0;
    Side tail;
    Side head;
  };

  [[nodiscard]] Side begin(std::uint32_t offset, std::uint32_t depth, std::uint32_t* word);
  [[nodiscard]] bool carry(Side& side, std::uint32_t value);
  [[nodiscard]] bool look();
  void work() noexcept;

  Transport& transport_;
  const std::uint32_t stride_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Lane> lanes_;
  bool stopping_ = false;
  std::atomic<std::uint64_t> refused_{0};
  std::thread thread_;
};

}  // namespace tutti::runtime::nvme::broker
