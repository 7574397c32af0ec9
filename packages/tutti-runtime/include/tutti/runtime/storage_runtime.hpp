// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "tutti/runtime/data_path.hpp"
#include "tutti/runtime/detail/batch.hpp"
#include "tutti/runtime/detail/notices.hpp"
#include "tutti/runtime/detail/slot_table.hpp"
#include "tutti/runtime/io.hpp"
#include "tutti/runtime/ordering.hpp"
#include "tutti/runtime/write_policy.hpp"

namespace tutti::runtime {

/// Opens targets, registers memory and moves bytes between them in batches. Thread-safe. Every call but
/// shutdown() throws Closed after shutdown() has begun, and every call throws Forked in a child of fork().
class StorageRuntime final : private CompletionSink {
 public:
  struct Options {
    std::uint32_t max_in_flight = 4096;
    std::string chosen_because;  ///< why this data path and no better one
    /// Accepted items, in flight or finished, of batches that nobody has waited for or abandoned.
    std::uint32_t max_results = 1 << 20;
    std::shared_ptr<detail::Notices> notices;  ///< may be null
  };

  struct Caps {
    DataPathCaps path;
    std::string chosen_because;
    std::uint32_t max_in_flight;
    std::uint32_t max_results;
  };

  /// @throws SystemError when no eventfd can be made.
  StorageRuntime(std::unique_ptr<DataPath> path, Options options);

  /// Waits for everything in flight, however long. Must not run in a forked child; see is_owner().
  ~StorageRuntime();

  /// `roots` says which drive the target is on, where `st_dev` does not: one tag, for a striped target one
  /// for each of its roots. Targets with one tag share a drive, whatever their `st_dev`; tags belong to this
  /// runtime. Empty: `st_dev` says it.
  /// @throws InvalidUri, SystemError; InvalidArgument for a tag of no or more than 255 bytes, the 1025th tag
  /// of this runtime, or another number of tags than the target has drives.
  [[nodiscard]] std::uint64_t open(const std::string& uri, bool writable,
                                   std::span<const std::string> roots = {});

  /// What was opened, and as what. @throws InvalidHandle
  struct TargetFacts {
    std::string uri;
    TargetInfo info;
  };
  [[nodiscard]] TargetFacts query(std::uint64_t target);

  /// @throws InvalidHandle; Busy while I/O of the target is in flight.
  void close(std::uint64_t target);

  /// The range stays the caller's and must stay mapped until unregistered. `device`: see make_memory().
  /// @throws InvalidArgument for a base off 64 KiB, a size off 4 KiB, memory that is not of its kind or a
  /// kind that the data path cannot reach; SystemError when CUDA is asked for and refuses.
  [[nodiscard]] std::uint64_t register_memory(std::uint64_t address, std::uint64_t size,
                                              MemoryKind kind = MemoryKind::kHost, int device = kAnyDevice);

  /// @throws InvalidHandle; Busy while I/O on the memory is in flight.
  void unregister_memory(std::uint64_t memory);

  /// Address of `bytes` bytes at a multiple of 8 in registered host memory, for streams to wait on or write.
  /// @throws InvalidHandle, InvalidArgument
  [[nodiscard]] std::uint64_t word_address(std::uint64_t memory, std::uint64_t offset, std::uint64_t bytes);

  /// Starts what it can. `errors[i]` becomes 0 (accepted) or EINVAL, EBADF, EACCES, EAGAIN (rejected): EAGAIN
  /// also when results of `max_results` items have not been collected. The gate of a batch of which nothing
  /// was accepted is opened at once; that of an empty batch with status 0.
  /// @returns the handle of the accepted items; empty when there is none.
  /// @throws InvalidArgument for options that contradict each other or a word off 8 bytes or outside its
  /// memory; InvalidHandle for a word's memory. Nothing was taken then and the gate stays closed.
  [[nodiscard]] std::optional<std::uint64_t> submit(std::span<const IoRequest> requests,
                                                    std::span<std::int32_t> errors,
                                                    const SubmitOptions& options = {});

  /// Items of the batch that the device has not begun end with ECANCELED; others run on. The handle stays
  /// good. @throws InvalidHandle
  void cancel(std::uint64_t batch);

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

  /// How writes share a root with reads from now on. @throws InvalidArgument
  void set_write_policy(const WritePolicy& policy);

  /// What happened that a user should hear of once. Counted without a lock, also after shutdown().
  [[nodiscard]] std::uint32_t notice_count() const noexcept;
  [[nodiscard]] std::vector<std::string> notices() const;

  /// Refuses new calls, waits for what is in flight, stops. False when the deadline came first: what no
  /// device has begun is then canceled, every gate is open, and another call goes on waiting for the devices.
  bool shutdown(Duration timeout);

  /// False in a child of fork().
  [[nodiscard]] bool is_owner() const noexcept;
  [[nodiscard]] bool stopped() const noexcept;
  [[nodiscard]] std::uint64_t direct_fallbacks() const noexcept { return path_->direct_fallbacks(); }

 private:
  using Batch = detail::Batch;
  using HeldOps = detail::HeldOps;
  enum class State { kOpen, kDraining, kStopping, kStopped };

  // Submission and completion (batches.cpp)
  void complete(std::span<const IoOp> ops) noexcept override;
  void complete_item(const IoOp& op) noexcept;
  void note_result(const IoOp& op) noexcept;
  void announce(Batch& batch) noexcept;
  void release(Batch& batch) noexcept;
  int reserve(const IoRequest& request, IoOp& op);
  void reserve_items(std::span<const IoRequest> requests, std::span<std::int32_t> errors,
                     const SubmitOptions& options, Batch& batch, std::vector<IoOp>& ops);
  std::optional<std::uint64_t> reserve_all(std::span<const IoRequest> requests,
                                           std::span<std::int32_t> errors, const SubmitOptions& options,
                                           std::vector<IoOp>& ops);
  void begin(const SubmitOptions& options, std::span<const std::int32_t> errors,
             const std::shared_ptr<Batch>& batch, std::list<HeldOps> held, std::vector<IoOp>& ops);
  void issue(std::vector<IoOp>& ops);
  std::shared_ptr<Batch>& find_batch(std::uint64_t handle);
  Completion take_completion(Batch& batch);

  // Ordering and deadlines (progress.cpp)
  void check_options(const SubmitOptions& options, std::size_t count) const;
  void check_stream(const SubmitOptions& options) const;
  Memory& find_word(const MemoryWord& word, std::uint64_t bytes, const char* name);
  void set_ordering(const SubmitOptions& options, const std::shared_ptr<Batch>& batch,
                    std::list<HeldOps>& held);
  void set_deadlines(const SubmitOptions& options, std::span<const std::int32_t> errors, Batch& batch);
  bool open_gate(Batch& batch) noexcept;
  void forget_timer(Batch& batch) noexcept;
  void arm_timer(Batch& batch) noexcept;
  void start_progress_thread();
  void progress() noexcept;
  [[nodiscard]] Clock::duration pause() const noexcept;
  void poll_words(std::unique_lock<std::mutex>& lock) noexcept;
  void poll_others(std::unique_lock<std::mutex>& lock) noexcept;
  void issue_held(std::unique_lock<std::mutex>& lock, HeldOps held, int error) noexcept;
  void expire(std::unique_lock<std::mutex>& lock) noexcept;
  void end_items(std::unique_lock<std::mutex>& lock, const std::shared_ptr<Batch>& batch, TimePoint due,
                 std::int32_t status) noexcept;
  HeldOps take_held(const Batch* batch, TimePoint due) noexcept;
  void mark_late(Batch& batch, TimePoint due, std::int32_t status) noexcept;
  void end_everything(std::unique_lock<std::mutex>& lock) noexcept;

  void name_roots(Target& target, std::span<const std::string> tags);
  void check_usable() const;
  void require_owner() const;
  bool drain_and_stop(Duration timeout);

  const pid_t owner_pid_;
  const Options options_;
  std::unique_ptr<DataPath> path_;
  const bool stream_ordered_;
  const bool device_execution_;  ///< at the start; what is given up later goes on without
  int event_fd_ = -1;

  mutable std::mutex mutex_;         ///< guards everything below
  std::condition_variable drained_;  ///< nothing in flight, or stopped
  State state_ = State::kOpen;
  detail::SlotTable<std::unique_ptr<Target>> targets_;
  std::map<std::string, std::uint64_t> root_tags_;  ///< drives as callers named them
  detail::SlotTable<std::unique_ptr<Memory>> memories_;
  detail::SlotTable<std::shared_ptr<Batch>> batches_;
  std::uint32_t in_flight_ = 0;
  std::uint64_t results_ = 0;     ///< items of batches whose handles are good
  Batch* outstanding_ = nullptr;  ///< first of the batches with outstanding items
  detail::Timers timers_;
  std::list<HeldOps> held_;  ///< in the order of submission
  TimePoint last_ready_;     ///< when a dependency came true
  bool progress_stops_ = false;
  std::condition_variable progress_wake_;
  std::thread progress_thread_;  ///< runs from the first batch with a deadline or a dependency on
  Stats stats_;
};

}  // namespace tutti::runtime
