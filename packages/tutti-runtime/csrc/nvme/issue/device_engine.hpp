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

#include "../drive.hpp"
#include "device_lanes.hpp"
#include "device_tables.hpp"
#include "tutti/runtime/data_path.hpp"
#include "tutti/runtime/nvme/team_host.hpp"

namespace tutti::runtime::nvme {

/// A read or write as teams carry it out.
struct DeviceOp {
  IoOp op;
  std::uint32_t drive = 0;
  std::uint32_t place = 0;   ///< slot of the tables
  std::uint32_t window = 0;  ///< slot of the tables
};

/// What becomes of operations. Called by the engine's thread with no lock held.
class DeviceEnds {
 public:
  /// With their status.
  virtual void done(std::span<const IoOp> ops) noexcept = 0;
  /// Nothing of them is under way, and the device did not carry them out: through no fault of theirs, or,
  /// where `upper_error` is set, with that error.
  virtual void left_over(std::span<const IoOp> ops) noexcept = 0;
  /// The device is of no use any more. Once.
  virtual void broke(const std::string& why) noexcept = 0;

 protected:
  ~DeviceEnds() = default;
};

/// Makes layers of operations as they come, one direction at a time, and tells what became of each as soon as
/// it is known. Reads go first. A thread of its own.
class DeviceEngine {
 public:
  /// @throws SystemError
  DeviceEngine(std::unique_ptr<TeamHost> teams, std::vector<Drive*> drives, const DeviceSettings& settings);
  ~DeviceEngine();
  DeviceEngine(const DeviceEngine&) = delete;
  DeviceEngine& operator=(const DeviceEngine&) = delete;

  [[nodiscard]] DeviceTables& tables() noexcept { return tables_; }
  [[nodiscard]] std::uint32_t teams() const noexcept { return lanes_.teams(); }
  /// False while nothing moves, and for ever once the device is of no use.
  [[nodiscard]] bool takes_more() const noexcept { return takes_more_.load(std::memory_order_relaxed); }

  /// @throws SystemError
  void start(DeviceEnds& ends);
  /// @throws std::bad_alloc, and has then taken none.
  void submit(std::span<const DeviceOp> ops);
  /// Takes out what no team has been shown. @returns it. @throws std::bad_alloc, and has then taken none
  [[nodiscard]] std::vector<IoOp> withdraw(const OpFilter& filter);
  /// Ends the thread and the teams. Nothing may be in flight.
  void stop() noexcept;

 private:
  /// One place of the ring: memory that teams and host share (`progress` and `status` are the teams' own),
  /// and the layer that it holds now.
  struct Slot {
    LayerItem* items = nullptr;
    LayerRange* ranges = nullptr;
    ItemProgress* progress = nullptr;
    std::int32_t* status = nullptr;
    std::int32_t* host_status = nullptr;
    std::uint64_t* host_good = nullptr;
    std::uint32_t* begun = nullptr;
    std::uint32_t* taken_back = nullptr;
    std::uint64_t* done = nullptr;
    std::uint64_t ticket = 0;
    std::vector<DeviceOp> ops;        ///< by item
    std::vector<std::uint32_t> open;  ///< items without a result
  };

  void work() noexcept;
  [[nodiscard]] bool wait_for_work();
  [[nodiscard]] bool show_layers();
  [[nodiscard]] bool take(std::vector<DeviceOp>& ops);
  void fill(Slot& slot);
  [[nodiscard]] bool collect();
  [[nodiscard]] bool collect(Slot& slot);
  [[nodiscard]] bool end_item(const Slot& slot, std::uint32_t item, bool layer_is_done);
  void look_after();
  void watch_drives(bool on) noexcept;
  void take_back_unbegun() noexcept;
  void leave_waiting() noexcept;
  void report() noexcept;
  [[nodiscard]] bool is_idle() const noexcept { return oldest_ == shown_; }

  const DeviceSettings settings_;
  const std::vector<Drive*> drives_;
  const std::unique_ptr<TeamHost> teams_;
  std::mutex teams_mutex_;
  DeviceTables tables_;
  DeviceLanes lanes_;
  DeviceEnds* ends_ = nullptr;
  std::thread thread_;
  std::atomic<bool> takes_more_{true};

  std::mutex mutex_;  ///< guards the next four
  std::condition_variable wake_;
  std::deque<DeviceOp> reads_;
  std::deque<DeviceOp> writes_;
  bool stopping_ = false;

  // The thread's own.
  std::vector<Slot> slots_;
  std::uint64_t oldest_ = 0;  ///< layers that are over
  std::uint64_t shown_ = 0;   ///< layers that were ever shown
  std::vector<IoOp> finished_;
  std::vector<IoOp> left_;
  TimePoint looked_;
  TimePoint moved_;  ///< when something ended last
  bool told_broken_ = false;
};

}  // namespace tutti::runtime::nvme
