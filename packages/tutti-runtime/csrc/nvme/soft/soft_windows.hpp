// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <vector>

#include "tutti/runtime/nvme/transport.hpp"

namespace tutti::runtime::nvme::soft {

/// What the device may reach: bus addresses that are none of the process's, with gaps between the windows, so
/// that an address that was not translated, or runs over an end, hits nothing. The owner locks.
class Windows {
 public:
  /// `granule`: 0, or the size of the pieces in which it lies on the bus.
  [[nodiscard]] std::vector<DmaRun> add(std::byte* address, std::uint64_t size, std::uint64_t granule,
                                        bool on_device);
  void remove(const std::vector<DmaRun>& runs);

  /// Windows belong to 0, this process, unless it is said otherwise.
  void set_owner(const std::vector<DmaRun>& runs, std::uint32_t owner) noexcept;
  /// find() sees only windows of `owner` from now on; 0: all.
  void look_as(std::uint32_t owner) noexcept { looking_as_ = owner; }

  /// The memory of a range, if one window has all of it.
  [[nodiscard]] std::byte* find(std::uint64_t iova, std::uint64_t size);
  /// Whether what find() found last is memory of a CUDA device.
  [[nodiscard]] bool found_on_device() const noexcept { return last_.on_device; }

 private:
  struct Window {
    std::byte* address;
    std::uint64_t size;
    bool on_device = false;
    std::uint32_t owner = 0;
  };
  std::uint64_t place(std::byte* address, std::uint64_t size, bool on_device);

  std::map<std::uint64_t, Window> windows_;
  [[nodiscard]] bool is_visible(const Window& window) const noexcept {
    return looking_as_ == 0 || window.owner == looking_as_;
  }

  std::uint64_t next_ = std::uint64_t{1} << 40;
  std::mt19937_64 random_{1};  // NOLINT(bugprone-random-generator-seed): tests must repeat
  // The last window that was found: neighbouring commands use the same.
  std::uint64_t last_begin_ = 0;
  Window last_{nullptr, 0};
  std::uint32_t looking_as_ = 0;
};

}  // namespace tutti::runtime::nvme::soft
