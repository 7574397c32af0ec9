// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "lanes.hpp"
#include "tutti/runtime/nvme/core/layer.hpp"

namespace tutti::runtime::nvme {

/// Numbers that are given out and come back.
class SlotNumbers {
 public:
  static constexpr std::uint32_t kNone = UINT32_MAX;

  explicit SlotNumbers(std::uint32_t count) : count_(count) {}
  /// @returns kNone when all are out.
  [[nodiscard]] std::uint32_t take() {
    if (!back_.empty()) {
      const std::uint32_t slot = back_.back();
      back_.pop_back();
      return slot;
    }
    if (next_ == count_) {
      return kNone;
    }
    back_.reserve(next_ + 1);  // so that giving back cannot fail
    return next_++;
  }
  void give_back(std::uint32_t slot) noexcept { back_.push_back(slot); }

 private:
  const std::uint32_t count_;
  std::uint32_t next_ = 0;
  std::vector<std::uint32_t> back_;
};

/// The places and windows that teams read, while targets and memory come and go. Thread-safe. What a slot had
/// may be overwritten once nothing that names it is under way.
class DeviceTables {
 public:
  static constexpr std::uint32_t kNone = SlotNumbers::kNone;
  static constexpr std::uint32_t kPlaces = 4096;  ///< of a drive
  static constexpr std::uint32_t kWindows = 256;

  /// `mutex` guards `teams`. @throws SystemError
  DeviceTables(TeamHost& teams, std::mutex& mutex, std::size_t drives);

  [[nodiscard]] DriveTables of(std::size_t drive) const noexcept;
  /// @returns the slot; kNone when there is none. @throws SystemError
  [[nodiscard]] std::uint32_t add_place(std::size_t drive, const ShardPlace& place, std::uint32_t nsid);
  void remove_place(std::size_t drive, std::uint32_t slot) noexcept;
  /// `views`: the same memory through each drive.
  [[nodiscard]] std::uint32_t add_window(std::span<const DataWindow* const> views);
  void remove_window(std::uint32_t slot) noexcept;

 private:
  /// Memory of teams is never given back, so a slot keeps what it had.
  template <typename T>
  struct Kept {
    T* memory = nullptr;
    std::size_t room = 0;
  };
  struct Side {
    ShardPlace* places = nullptr;
    std::uint32_t* nsids = nullptr;
    DataWindow* windows = nullptr;
    SlotNumbers free_places{kPlaces};
    std::vector<Kept<BlockExtent>> extents;  ///< by place
    std::vector<Kept<IovaRun>> runs;         ///< by window
  };
  template <typename T>
  T* copy(std::vector<Kept<T>>& kept, std::uint32_t slot, const T* from, std::size_t count);

  TeamHost& teams_;
  std::mutex& mutex_;
  std::vector<Side> sides_;
  SlotNumbers free_windows_{kWindows};
};

}  // namespace tutti::runtime::nvme
