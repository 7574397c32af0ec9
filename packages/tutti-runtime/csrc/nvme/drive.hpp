// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "nvme_target.hpp"
#include "tutti/runtime/data_path.hpp"
#include "tutti/runtime/detail/notices.hpp"
#include "tutti/runtime/nvme/controller.hpp"
#include "tutti/runtime/nvme/core/split.hpp"
#include "tutti/runtime/ordering.hpp"

namespace tutti::runtime::nvme {

struct DriveSettings {
  std::uint32_t queues = 1;                              ///< I/O queue pairs
  std::uint32_t queue_entries = 256;                     ///< of each
  std::uint64_t window_bytes = std::uint64_t{64} << 20;  ///< under way at once; one command always may be
  Duration command_timeout{5.0};                         ///< after which a command is given up
  Duration admin_timeout{2.0};
  Duration retry_after{1.0};                   ///< until a drive that does not come back is tried again
  bool sgl = true;                             ///< use SGLs where the controller takes them
  std::uint32_t window_commands = 0;           ///< under way at once; 0: what the queues take
  std::uint32_t team_queues = 0;               ///< queue pairs beside `queues` on which teams submit
  MemoryKind team_memory = MemoryKind::kHost;  ///< of those
};

/// Who submits on the team queues of drives. The drives' own threads call it.
class TeamLanes {
 public:
  /// Lets the teams of a drive give up what is under way and ring no doorbell until renew(); waits for that.
  virtual void halt(std::uint32_t drive) noexcept = 0;
  /// Whether a team has given up its queue, or it is over and the controller still has it.
  [[nodiscard]] virtual bool is_lost(std::uint32_t drive, std::uint32_t queue) const noexcept = 0;
  /// Whether nobody submits any more. A team that has not heard of it may still ring doorbells, so the
  /// controller must not have its queue.
  [[nodiscard]] virtual bool is_over() const noexcept = 0;
  /// The controller has the pair anew, or, if it is over, has it no more.
  virtual void renew(std::uint32_t drive, std::uint32_t queue, const QueuePair& pair) noexcept = 0;
  /// The drive stays away. `safe`: it can reach no memory.
  virtual void stays_away(std::uint32_t drive, bool safe) noexcept = 0;

 protected:
  ~TeamLanes() = default;
};

/// What a drive is: read from the device when it was brought up, the same after every reset.
struct DriveFacts {
  std::string name;
  ControllerIdentity identity;
  std::vector<NamespaceIdentity> namespaces;
  std::uint64_t page_bytes = 4096;
  std::uint64_t max_command_bytes = UINT64_MAX;
  std::uint32_t queues = 0;
  std::uint32_t queue_entries = 0;
  TransportCaps transport;

  [[nodiscard]] const NamespaceIdentity* find(std::uint32_t nsid) const noexcept;
};

struct DriveOp {
  IoOp op;
  const NvmeTarget* target = nullptr;
  const DataWindow* window = nullptr;  ///< null for a flush
};

/// One controller and the thread that works on its queues: it issues, polls, and brings back what stopped
/// answering. In order of force: Abort, new queues, controller reset, cutting the device off from memory.
class Drive {
 public:
  /// @throws what Controller throws.
  Drive(std::unique_ptr<Transport> transport, const DriveSettings& settings,
        std::shared_ptr<detail::Notices> notices);
  ~Drive();
  Drive(const Drive&) = delete;
  Drive& operator=(const Drive&) = delete;

  [[nodiscard]] const DriveFacts& facts() const noexcept { return facts_; }
  [[nodiscard]] Transport& transport() const noexcept { return controller_->transport(); }
  [[nodiscard]] std::uint32_t max_in_flight() const noexcept { return max_in_flight_; }

  /// What teams submit on; `settings.team_queues` of them, or what the controller granted.
  [[nodiscard]] const std::vector<std::unique_ptr<QueuePair>>& team_queues() const noexcept {
    return team_queues_;
  }
  /// Before start(). `number` is what the drive is called to `teams`.
  void serve_teams(TeamLanes& teams, std::uint32_t number) noexcept {
    teams_ = &teams;
    number_ = number;
  }
  /// Whether teams have commands under way: then their queues are watched.
  void watch_teams(bool on) noexcept;

  /// Starts the thread. @throws SystemError
  void start(CompletionSink& sink);
  /// @throws std::bad_alloc, and has then taken none.
  void submit(std::span<const DriveOp> ops);
  /// Ends operations that were never submitted.
  void refuse(std::span<const DriveOp> ops, std::int32_t status) noexcept;
  void withdraw(const OpFilter& filter, std::int32_t status) noexcept;
  /// Ends the thread and hands the controller back. Nothing may be in flight.
  void stop() noexcept;

 private:
  /// An operation of which commands are under way.
  struct Active {
    DriveOp op;
    Splitter splitter;
    std::uint32_t outstanding = 0;
    bool all_issued = false;
    std::int32_t status = 0;
    std::uint64_t failed_at = UINT64_MAX;  ///< the first byte that was not moved
  };
  struct Flying {
    Command command{};
    std::uint32_t active = 0;
    std::uint64_t offset = 0;  ///< in the operation
    std::uint64_t length = 0;
    TimePoint issued;
    std::uint32_t tries = 0;
    bool overdue = false;
    const void* lane = nullptr;  ///< where it was sent
  };
  struct Lane {
    std::unique_ptr<QueuePair> queue;
    std::vector<Flying> flying;  ///< by slot
  };
  enum class State {
    kUp,
    kDown,      ///< cut off or gone: nothing is under way, new operations fail
    kStranded,  ///< does not answer and cannot be cut off: what is under way keeps its memory
  };

  // Work (drive.cpp)
  void work() noexcept;
  bool wait_for_work();
  bool issue();
  bool begin_next();
  bool issue_current();
  void send(Lane& lane, const Flying& flying);
  [[nodiscard]] bool window_is_full() const noexcept;
  [[nodiscard]] Lane* lane_with_room(const void* rather_not = nullptr) noexcept;
  bool reap();
  bool reap(Lane& lane);
  void take_back(const Flying& flying, bool queue_is_gone);
  void end_command(const Flying& flying, std::int32_t error);
  void end_if_done(std::uint32_t index);
  void report();

  // Recovery (drive_recovery.cpp)
  void look_after(TimePoint now);
  [[nodiscard]] bool mend_team_queues();
  void recover(Lane& lane);
  [[nodiscard]] bool abort_overdue(Lane& lane);
  [[nodiscard]] bool wait_for_overdue(Lane& lane);
  void remake(Lane& lane);
  void reset_controller();
  void bring_up();
  void bring_up_team_queues();
  void cut_off(int error);
  void settle(Lane& lane);
  void send_again();
  void give_up_again(int error);
  void fail_waiting() noexcept;
  void say(const char* key, const std::string& text);

  const DriveSettings settings_;
  const std::shared_ptr<detail::Notices> notices_;
  std::unique_ptr<Controller> controller_;
  DriveFacts facts_;
  std::uint32_t max_in_flight_ = 0;
  CompletionSink* sink_ = nullptr;
  std::thread thread_;

  std::mutex mutex_;  ///< guards the next four
  std::condition_variable wake_;
  std::deque<DriveOp> waiting_;
  bool stopping_ = false;
  bool asleep_ = false;

  TeamLanes* teams_ = nullptr;
  std::uint32_t number_ = 0;
  std::atomic<bool> teams_busy_{false};

  // The thread's own.
  std::vector<Lane> lanes_;
  std::vector<std::unique_ptr<QueuePair>> team_queues_;
  std::size_t next_lane_ = 0;
  std::vector<Active> actives_;
  std::vector<std::uint32_t> free_actives_;
  std::int64_t current_ = -1;  ///< the operation that is being issued
  std::uint32_t in_flight_ = 0;
  std::uint64_t bytes_in_flight_ = 0;
  std::vector<IoOp> finished_;
  std::vector<Flying> again_;  ///< commands whose queue went away under them
  State state_ = State::kUp;
  int down_error_ = 0;
  TimePoint retry_at_;
  TimePoint looked_;
};

}  // namespace tutti::runtime::nvme
