// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tutti/runtime/data_path.hpp"
#include "tutti/runtime/detail/slot_table.hpp"
#include "tutti/runtime/io.hpp"

namespace tutti::runtime {

using Duration = std::chrono::duration<double>;

/// Opens targets, registers memory and moves bytes between them in batches. Thread-safe. Every call but
/// shutdown() throws Closed after shutdown() has begun, and every call throws Forked in a child of fork().
class StorageRuntime final : private CompletionSink {
 public:
  struct Options {
    std::uint32_t max_in_flight = 4096;
    std::string chosen_because;  ///< why this data path and no better one
  };

  struct Caps {
    DataPathCaps path;
    std::string chosen_because;
    std::uint32_t max_in_flight;
  };

  /// @throws SystemError when no eventfd can be made.
  StorageRuntime(std::unique_ptr<DataPath> path, Options options);

  /// Waits for everything in flight, however long. Must not run in a forked child; see is_owner().
  ~StorageRuntime();

  /// @throws InvalidUri, SystemError
  [[nodiscard]] std::uint64_t open(const std::string& uri, bool writable);

  /// What was opened, and as what. @throws InvalidHandle
  struct TargetFacts {
    std::string uri;
    TargetInfo info;
  };
  [[nodiscard]] TargetFacts query(std::uint64_t target);

  /// @throws InvalidHandle; Busy while I/O of the target is in flight.
  void close(std::uint64_t target);

  /// The range stays the caller's and must stay mapped until unregistered.
  /// @throws InvalidArgument for a base off 64 KiB, a size off 4 KiB or memory that is not mapped.
  [[nodiscard]] std::uint64_t register_memory(std::uint64_t address, std::uint64_t size);

  /// @throws InvalidHandle; Busy while I/O on the memory is in flight.
  void unregister_memory(std::uint64_t memory);

  /// Starts what it can. `errors[i]` becomes 0 (accepted) or EINVAL, EBADF, EACCES, EAGAIN (rejected).
  /// @returns the handle of the accepted items; empty when there is none.
  [[nodiscard]] std::optional<std::uint64_t> submit(std::span<const IoRequest> requests,
                                                    std::span<std::int32_t> errors);

  /// @throws InvalidHandle
  [[nodiscard]] bool poll(std::uint64_t batch);

  /// Waits until the batch has finished and consumes the handle; empty at the deadline, the handle then stays
  /// good. Without a timeout it waits for ever. `on_tick` runs about ten times a second with no lock held.
  /// @throws InvalidHandle, and whatever on_tick throws.
  [[nodiscard]] std::optional<Completion> wait(std::uint64_t batch, std::optional<Duration> timeout,
                                               const std::function<void()>& on_tick = {});

  /// Gives the handle up. The batch runs to its end; its record is then freed. @throws InvalidHandle
  void abandon(std::uint64_t batch);

  /// Readable after batches finished; owned by the runtime.
  [[nodiscard]] int completion_fd();

  [[nodiscard]] Caps caps();
  [[nodiscard]] Stats stats();

  /// Refuses new calls, waits for what is in flight, stops. False when the deadline came first: everything
  /// then stays alive and another call goes on waiting.
  bool shutdown(Duration timeout);

  /// False in a child of fork().
  [[nodiscard]] bool is_owner() const noexcept;
  [[nodiscard]] bool stopped() const noexcept;
  [[nodiscard]] std::uint64_t direct_fallbacks() const noexcept { return path_->direct_fallbacks(); }

 private:
  struct Batch;
  enum class State { kOpen, kDraining, kStopping, kStopped };

  void complete(std::span<const IoOp> ops) noexcept override;
  void complete_item(const IoOp& op) noexcept;
  void finish(Batch& batch) noexcept;
  int reserve(const IoRequest& request, IoOp& op);
  std::optional<std::uint64_t> reserve_all(std::span<const IoRequest> requests,
                                           std::span<std::int32_t> errors, std::vector<IoOp>& ops);
  void check_usable() const;
  void require_owner() const;
  bool drain_and_stop(Duration timeout);
  std::shared_ptr<Batch>& find_batch(std::uint64_t handle);

  const pid_t owner_pid_;
  const Options options_;
  std::unique_ptr<DataPath> path_;
  int event_fd_ = -1;

  mutable std::mutex mutex_;         ///< guards everything below
  std::condition_variable drained_;  ///< nothing in flight, or stopped
  State state_ = State::kOpen;
  detail::SlotTable<std::unique_ptr<Target>> targets_;
  detail::SlotTable<std::unique_ptr<Memory>> memories_;
  detail::SlotTable<std::shared_ptr<Batch>> batches_;
  std::uint32_t in_flight_ = 0;
  Stats stats_;
};

}  // namespace tutti::runtime
