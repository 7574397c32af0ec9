// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "soft_data.hpp"
#include "soft_storage.hpp"
#include "soft_windows.hpp"
#include "tutti/runtime/nvme/core/command.hpp"
#include "tutti/runtime/nvme/core/completion.hpp"
#include "tutti/runtime/nvme/soft.hpp"

namespace tutti::runtime::nvme::soft {

/// What an executed command answers.
struct Outcome {
  std::uint16_t status = 0;
  std::uint32_t result = 0;
};

struct CompletionQueue {
  std::uint32_t depth = 0;
  std::uint64_t iova = 0;
  Completion* entries = nullptr;
  std::uint32_t tail = 0;
  bool phase = true;
  bool overrun_said = false;
  std::uint32_t users = 0;         ///< submission queues
  std::deque<Completion> waiting;  ///< for a place; their phase is not set yet
};

/// A command between its fetch and its completion.
struct Pending {
  Command command{};
  std::optional<SoftRule> rule;
  std::uint32_t others = 0;  ///< kReorder: completions of the queue to let go first
  std::uint16_t queue = 0;
  std::uint64_t bytes = 0;
  bool only_notice = false;  ///< kDuplicateCompletion: the second one; nothing runs
};

struct SubmissionQueue {
  std::uint16_t cq = 0;
  std::uint32_t depth = 0;
  std::uint64_t iova = 0;
  const Command* entries = nullptr;
  std::uint32_t head = 0;       ///< next to fetch
  std::uint32_t told_head = 0;  ///< as the last completion had it
  std::uint32_t tail = 0;       ///< as the doorbell had it
  std::optional<std::uint32_t> ignored_tail;
  std::vector<bool> cids = std::vector<bool>(65536);  ///< in flight
  std::vector<Pending> held;                          ///< kReorder
  bool broken = false;                                ///< guarded, and broke the rules of its ring
};

/// The controller behind a soft transport: registers in `bar`, everything else its own. The owner locks;
/// registers are words that others read and write at the same time.
class Device {
 public:
  Device(const SoftSettings& settings, SoftControl& control, std::span<std::uint32_t> bar);

  /// One round. @returns whether there was anything to do.
  bool step();

  [[nodiscard]] Windows& windows() noexcept { return windows_; }
  /// After a window is gone: queues in it are lost.
  void check_queues();
  void guard_queue(std::uint16_t id, const SoftGuard& guard);
  void set_bus_master(bool on) noexcept { bus_master_ = on; }
  /// See Storage::warm_up(). @throws SystemError
  void warm_up() {
    for (const auto& each : namespaces_) {
      each->warm_up();
    }
  }
  /// Not yet back after it was unplugged. Callable without the lock.
  [[nodiscard]] bool gone() const noexcept { return gone_.load(std::memory_order_acquire); }

  [[nodiscard]] std::uint32_t load(std::uint32_t offset) const noexcept;
  void store(std::uint32_t offset, std::uint32_t value) noexcept;
  void reset_registers() noexcept;

 private:
  // Registers and queues (soft_device.cpp)
  bool look_at_configuration();
  void enable(std::uint32_t cc);
  void disable();
  void drop_queues();
  void fatal(const std::string& why);
  void blame(std::uint16_t id, SubmissionQueue& queue, const std::string& why);
  [[nodiscard]] bool has_backlog(const SubmissionQueue& queue) const;
  bool look_at_queue(std::uint16_t id, SubmissionQueue& queue);
  bool take_doorbell(std::uint16_t id, SubmissionQueue& queue);
  void fetch(std::uint16_t id, SubmissionQueue& queue);
  void begin(Pending& pending);
  void finish(const Pending& pending);
  void post(std::uint16_t queue_id, std::uint16_t cid, Outcome outcome, const std::optional<SoftRule>& rule);
  void put(CompletionQueue& queue, std::uint16_t cq_id, const Completion& entry, bool wrong_phase);
  static void write(CompletionQueue& queue, const Completion& entry, bool wrong_phase) noexcept;
  [[nodiscard]] std::uint32_t room(CompletionQueue& queue, std::uint16_t cq_id);
  void keep(TimePoint due, const Pending& pending);
  bool run_due();
  void let_go_of_held(std::uint16_t id);

  // I/O commands (soft_io.cpp)
  [[nodiscard]] Outcome check_io(const Command& command, Storage*& storage);
  [[nodiscard]] Outcome run_io(std::uint16_t queue, const Command& command);
  [[nodiscard]] Outcome move(const Command& command, Storage& storage);
  [[nodiscard]] static bool may_touch(const SoftGuard& guard, const Command& command);

  // Admin commands (soft_admin.cpp)
  [[nodiscard]] Outcome run_admin(const Command& command);
  [[nodiscard]] Outcome identify(const Command& command);
  [[nodiscard]] Outcome number_of_queues(const Command& command);
  [[nodiscard]] Outcome create_cq(const Command& command);
  [[nodiscard]] Outcome create_sq(const Command& command);
  [[nodiscard]] Outcome delete_sq(const Command& command);
  [[nodiscard]] Outcome delete_cq(const Command& command);
  [[nodiscard]] Outcome abort(const Command& command);
  [[nodiscard]] Outcome check_queue(const Command& command, std::uint32_t entry_bytes, std::byte*& memory);

  const SoftSettings settings_;
  SoftControl& control_;
  std::span<std::uint32_t> bar_;
  std::vector<std::unique_ptr<Storage>> namespaces_;
  Windows windows_;
  DataPieces data_;

  bool enabled_ = false;
  bool failed_ = false;
  std::atomic<bool> gone_{false};  ///< unplugged at the last look
  bool bus_master_ = true;
  std::uint64_t page_ = 4096;
  std::map<std::uint16_t, CompletionQueue> cqs_;
  std::map<std::uint16_t, SubmissionQueue> sqs_;
  std::map<std::uint16_t, SoftGuard> guards_;
  std::multimap<TimePoint, Pending> pending_;
  std::uint64_t pending_bytes_ = 0;
  TimePoint link_free_;  ///< when the modelled bandwidth has room again
};

}  // namespace tutti::runtime::nvme::soft
