// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "tutti/runtime/data_path.hpp"
#include "tutti/runtime/detail/cuda_memory.hpp"

namespace tutti::runtime::nvme::qtest {

/// Doorbells that are rung by plain stores, as a GPU rings them: a thread looks for values that differ from
/// the last one and writes them to the device. It stores to a word only as a queue begins. No ring is missed
/// for being like the last: a tail or head comes round to its value only after the device, which knows what
/// was forwarded and nothing else, has moved on.
class DoorbellRelay {
 public:
  using Write = std::function<void(std::uint32_t offset, std::uint32_t value)>;

  /// @param write a doorbell's offset in BAR0 and its new value; called on the relay's thread
  /// @param device the CUDA device that is to reach the words too; kAnyDevice for none
  /// @throws what detail::HostPin throws
  explicit DoorbellRelay(Write write, int device = kAnyDevice);
  ~DoorbellRelay();
  DoorbellRelay(const DoorbellRelay&) = delete;
  DoorbellRelay& operator=(const DoorbellRelay&) = delete;

  /// The word for a doorbell whose queue is about to begin: watched from now on, and what an earlier queue
  /// left in it is forgotten. Null for an offset that no doorbell of 511 queue pairs has.
  [[nodiscard]] std::uint32_t* begin(std::uint32_t offset);

  /// Forwards what this thread has stored so far. A bus keeps the stores of one processor in order, so this
  /// comes before a write to any other register.
  void flush() { static_cast<void>(look()); }

 private:
  static constexpr std::uint32_t kWords = 1024;
  /// A page of its own, which can be pinned for a GPU.
  struct alignas(4096) Words {
    std::array<std::uint32_t, kWords> at;
  };

  void run();
  /// The value that a word was rung with since it was last looked at, or what no doorbell holds.
  [[nodiscard]] std::uint32_t take(std::uint32_t index);
  /// True when a word had been rung.
  [[nodiscard]] bool look();

  Write write_;
  std::mutex mutex_;
  std::uint32_t watched_ = 0;  ///< words below this index may be in use
  std::unique_ptr<Words> words_;
  std::unique_ptr<detail::HostPin> pin_;    ///< of the words
  std::array<std::uint32_t, kWords> seen_;  ///< what was last forwarded of each
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace tutti::runtime::nvme::qtest
