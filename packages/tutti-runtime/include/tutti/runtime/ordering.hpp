// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace tutti::runtime {

using Duration = std::chrono::duration<double>;
using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;

/// Something that must have happened before a batch may touch its memory.
class Dependency {
 public:
  Dependency() = default;
  virtual ~Dependency() = default;
  Dependency(const Dependency&) = delete;
  Dependency& operator=(const Dependency&) = delete;

  /// Asked again and again by the runtime's progress thread, with no lock held; must not block.
  /// @returns 0 when it has happened, EAGAIN not yet, else the errno with which the batch's items fail.
  virtual int query() noexcept = 0;
};

/// Something that waits for a batch. Opened exactly once, by success, failure, deadline, cancellation or the
/// deadline of shutdown(): a stream that waits on it never hangs.
class Gate {
 public:
  Gate() = default;
  virtual ~Gate() = default;
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  /// `status`: 0, or the errno of the first request, in the order of the batch, that was rejected or failed.
  /// Called with the runtime's lock held, from any thread: must be short and must not call the runtime.
  virtual void open(std::int32_t status) noexcept = 0;
};

/// Ready once the word has reached a value, in wrapping order: `(int64)(word - value) >= 0`, which is the
/// rule of CUDA's CU_STREAM_WAIT_VALUE_GEQ, so that a word that only counts up serves many batches.
class HostWordDependency final : public Dependency {
 public:
  /// `address`: 8-byte aligned and valid until the batch has begun.
  HostWordDependency(std::uint64_t address, std::uint64_t value)
      : word_(*reinterpret_cast<std::uint64_t*>(address)), value_(value) {}

  int query() noexcept override;

 private:
  std::atomic_ref<std::uint64_t> word_;
  std::uint64_t value_;
};

/// Writes the status to one word and then `value` to another (release): who sees the value sees the status,
/// and the bytes.
class HostWordGate final : public Gate {
 public:
  /// Both addresses 8-byte aligned and valid until the gate is open.
  HostWordGate(std::uint64_t word_address, std::uint64_t status_address, std::uint64_t value)
      : word_(*reinterpret_cast<std::uint64_t*>(word_address)),
        status_(*reinterpret_cast<std::uint64_t*>(status_address)),
        value_(value) {}

  void open(std::int32_t status) noexcept override;

 private:
  std::atomic_ref<std::uint64_t> word_;
  std::atomic_ref<std::uint64_t> status_;
  std::uint64_t value_;
};

/// A 64-bit word in registered host memory, at a multiple of 8. The memory stays in use (unregistering it
/// says Busy) until the word has served.
struct MemoryWord {
  std::uint64_t memory = 0;  ///< handle
  std::uint64_t offset = 0;  ///< bytes
  std::uint64_t value = 0;
};

/// How a batch is ordered with the rest of the program. Give at most one of `after`, `after_word` and
/// `stream`, and at most one of `gate` and `gate_word`.
struct SubmitOptions {
  std::optional<TimePoint> deadline;  ///< of every item
  std::vector<TimePoint> deadlines;   ///< one for each request instead; TimePoint::max() is none
  std::shared_ptr<Dependency> after;
  std::shared_ptr<Gate> gate;
  std::optional<MemoryWord> after_word;  ///< read by the rule of HostWordDependency
  std::optional<MemoryWord> gate_word;   ///< receives `value`; the word behind it (offset + 8) the status
  std::optional<std::uint64_t> stream;   ///< a CUstream as a number, whose order the batch keeps
  bool on_device = false;                ///< a device submits what it can
};

}  // namespace tutti::runtime
