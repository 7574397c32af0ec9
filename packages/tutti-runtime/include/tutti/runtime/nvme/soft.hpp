// SPDX-License-Identifier: Apache-2.0
// An NVMe controller in the process: strict about what drivers must do, slow or faulty where it is told to.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tutti/runtime/nvme/transport.hpp"
#include "tutti/runtime/ordering.hpp"

namespace tutti::runtime::nvme {

struct SoftNamespace {
  std::uint64_t bytes = 0;  ///< a multiple of lba_bytes; with an image 0 is the image's size
  std::string image;        ///< file with the blocks; empty: memory of the process, zeros at first
  std::uint32_t lba_bytes = 512;
  std::uint32_t metadata_bytes = 0;  ///< what the format says; the driver must refuse more than 0
};

struct SoftSettings {
  std::string name = "soft";
  std::vector<SoftNamespace> namespaces;  ///< namespace i has the identifier i + 1
  std::uint64_t mdts_bytes = 0;           ///< power of two from 4096; 0: no limit
  bool sgl = false;
  std::uint32_t max_entries = 1024;  ///< of an I/O queue (CAP.MQES + 1), 2 to 65536
  std::uint32_t max_queues = 16;     ///< I/O queue pairs
  std::uint32_t doorbell_stride = 4;
  std::uint32_t timeout_ms = 2000;  ///< CAP.TO; counted in 500 ms
  std::uint32_t noiob = 0;          ///< of every namespace, in blocks
  std::uint64_t dma_granule =
      0;                 ///< windows are scattered on the bus in pieces of this size; 0: in one piece
  double latency = 0;    ///< seconds of every I/O command
  double bandwidth = 0;  ///< bytes a second; 0: no limit
  /// CUDA device that may ring the doorbells and have queues in pinned memory, and whose memory is reached,
  /// by copies of the controller's thread; kAnyDevice: none.
  int device = kAnyDevice;
};

/// What goes wrong, at a command unless it says otherwise.
enum class SoftFault {
  kIgnoreDoorbell,       ///< at a doorbell: the store is not seen until another value is stored
  kDropCompletion,       ///< the command runs, nobody hears of it
  kLateCompletion,       ///< the command runs `delay` seconds later, and can be aborted until then
  kReorder,              ///< the command runs after `hold` others of its queue have completed
  kWrongPhase,           ///< its completion is written with the phase of the round before
  kDuplicateCompletion,  ///< completes, and once more after `delay` seconds
  kStrayCompletion,      ///< a completion for a command that does not exist comes before its own
  kBadHead,              ///< its completion tells a head of the SQ that cannot be
  kStatus,               ///< fails with `status`; data is not moved
  kFatal,                ///< CSTS.CFS is set; nothing more is done until a controller reset
  kReset,   ///< the controller forgets its queues, and CSTS.RDY falls, as when it is reset by itself
  kStuck,   ///< does nothing more, not even a reset, until heal()
  kUnplug,  ///< registers read all ones until heal()
};

struct SoftRule {
  SoftFault fault = SoftFault::kStatus;
  bool admin = false;                  ///< counts commands of the admin queue; else of I/O queues
  std::optional<std::uint8_t> opcode;  ///< counts only these
  std::uint64_t first_lba = 0;         ///< I/O: counts only commands that touch first_lba to last_lba
  std::uint64_t last_lba = UINT64_MAX;
  std::uint64_t skip = 0;
  std::uint64_t every = 1;
  std::uint64_t times = 1;   ///< 0: no end
  std::uint16_t status = 0;  ///< status field: type in bits 10:8, code in 7:0, do not retry in 14
  double delay = 0;
  std::uint32_t hold = 0;
};

struct SoftCounters {
  std::uint64_t commands = 0;  ///< of I/O queues, fetched
  std::uint64_t reads = 0;     ///< completed with success, and so on
  std::uint64_t writes = 0;
  std::uint64_t flushes = 0;
  std::uint64_t bytes = 0;
  std::uint64_t aborts = 0;       ///< Abort commands
  std::uint64_t queues_made = 0;  ///< I/O submission queues
  std::uint64_t queues_deleted = 0;
  std::uint64_t enables = 0;
  std::uint64_t shutdowns = 0;
  std::uint64_t faults = 0;  ///< times that a rule was carried out
  /// Most that waited for their time at once, where there is a latency or bandwidth to wait for.
  std::uint64_t most_commands = 0;
  std::uint64_t most_bytes = 0;
  double copy_seconds = 0;    ///< of all copies to or from a CUDA device
  double longest_copy = 0;    ///< seconds of one command's copies
  double copy_under_way = 0;  ///< seconds since the one began that has not ended; 0: none
};

/// Switchboard of one soft controller, shared with whoever made it. Thread-safe.
class SoftControl {
 public:
  void add(const SoftRule& rule);
  /// Forgets all rules, and ends kStuck and kUnplug.
  void heal();
  /// What drivers did that NVMe does not allow, in words, in order. At most 100 are kept.
  [[nodiscard]] std::vector<std::string> violations() const;
  [[nodiscard]] SoftCounters counters() const;
  /// Waits until rules were carried out `count` times in all. @returns false at the timeout.
  [[nodiscard]] bool wait_faults(std::uint64_t count, Duration timeout);

  // The controller's side.
  void violate(std::string text);
  template <typename Change>
  void count(Change change) {
    const std::lock_guard lock(mutex_);
    change(counters_);
  }
  /// The first rule that the event calls for; `opcode` and LBAs of a command.
  [[nodiscard]] std::optional<SoftRule> match(bool doorbell, bool admin, std::uint8_t opcode,
                                              std::uint64_t first_lba, std::uint64_t blocks);
  void begin_copy() noexcept { copying_since_.store(ns_now(), std::memory_order_relaxed); }
  void end_copy() noexcept { copying_since_.store(0, std::memory_order_relaxed); }
  std::atomic<bool> stuck{false};
  std::atomic<bool> unplugged{false};

 private:
  struct State {
    SoftRule rule;
    std::uint64_t seen = 0;
    std::uint64_t done = 0;
  };
  static std::int64_t ns_now() noexcept {
    return Clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
  }

  std::atomic<std::int64_t> copying_since_{0};
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<State> rules_;
  std::atomic<std::size_t> rule_count_{0};
  std::vector<std::string> violations_;
  SoftCounters counters_;
};

/// What the commands of a queue that was given to another process may reach.
struct SoftGuard {
  std::uint32_t owner = 0;       ///< only windows of this owner
  std::vector<LbaRange> ranges;  ///< only these blocks; empty: all
};

/// A transport with its controller. Beside Transport it can be driven by hand.
class SoftTransport : public Transport {
 public:
  /// Stops the controller's own thread; step() then does its work.
  virtual void drive_by_hand() = 0;
  /// One round of the controller. @returns whether there was anything to do.
  virtual bool step() = 0;

  /// Says whose a mapped window is: 0, this process, unless told otherwise.
  virtual void set_owner(const DmaMapping& window, std::uint32_t owner) = 0;
  /// Guards I/O queue `id`, which may not exist yet, until it is guarded anew or with owner 0. A guarded
  /// queue that breaks the rules of its ring is left out from then on; it does not stop the controller.
  virtual void guard_queue(std::uint16_t id, const SoftGuard& guard) = 0;
};

/// @throws InvalidArgument for settings outside their range; SystemError for an image that cannot be opened.
[[nodiscard]] std::unique_ptr<SoftTransport> make_soft_transport(const SoftSettings& settings,
                                                                 std::shared_ptr<SoftControl> control);

}  // namespace tutti::runtime::nvme
