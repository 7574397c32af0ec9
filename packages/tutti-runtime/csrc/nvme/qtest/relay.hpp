// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace tutti::runtime::nvme::qtest {

/// Doorbells that are rung by plain stores, as a GPU rings them: a thread takes the values out of the words
/// and writes them to the device. A value that is taken leaves a word that no store leaves, so the same value
/// can ring again, as the first one of a queue that begins anew does.
class DoorbellRelay {
 public:
  using Write = std::function<void(std::uint32_t offset, std::uint32_t value)>;

  /// @param write a doorbell's offset in BAR0 and its new value; called on the relay's thread
  explicit DoorbellRelay(Write write);
  ~DoorbellRelay();
  DoorbellRelay(const DoorbellRelay&) = delete;
  DoorbellRelay& operator=(const DoorbellRelay&) = delete;

  /// The word for a doorbell, from now on watched. Null for an offset that no doorbell of 511 queue pairs
  /// has.
  [[nodiscard]] std::uint32_t* word(std::uint32_t offset);

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
  /// The value that a word was rung with since it was last taken, or what no doorbell holds.
  [[nodiscard]] std::uint32_t take(std::uint32_t index);
  /// True when a word had been rung.
  [[nodiscard]] bool look();

  Write write_;
  std::mutex mutex_;
  std::uint32_t watched_ = 0;  ///< words below this index may be in use
  std::unique_ptr<Words> words_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace tutti::runtime::nvme::qtest
