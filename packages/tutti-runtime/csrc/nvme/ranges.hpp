// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <mutex>

namespace tutti::runtime::nvme {

/// Bus addresses that nobody uses, given out lowest first. Thread-safe.
class FreeRanges {
 public:
  /// Adds [begin, begin + size) to what is free; it must not touch what is free already but at its ends.
  void add(std::uint64_t begin, std::uint64_t size) noexcept;

  /// The lowest free `size` addresses from a multiple of `alignment` (a power of two) on.
  /// @throws SystemError(ENOMEM)
  [[nodiscard]] std::uint64_t take(std::uint64_t size, std::uint64_t alignment);

 private:
  std::mutex mutex_;
  std::map<std::uint64_t, std::uint64_t> free_;  ///< begin to size; neighbours are one
};

}  // namespace tutti::runtime::nvme
