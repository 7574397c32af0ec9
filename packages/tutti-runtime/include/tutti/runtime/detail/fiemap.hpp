// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tutti/runtime/extents.hpp"

namespace tutti::runtime::detail {

/// One record of an answer.
struct FiemapRecord {
  Extent extent;
  std::uint32_t flags = 0;
};

/// Reads the answer to FS_IOC_FIEMAP: struct fiemap of linux/fiemap.h, 32 bytes, with its extents of 56 bytes
/// behind it. @throws ExtentRefused(kMalformed) for a count beyond the bytes that are there, an extent
/// without length, one whose end does not fit into 64 bits, and for extents that overlap or are out of order.
[[nodiscard]] std::vector<FiemapRecord> parse_fiemap(std::span<const std::byte> reply);

/// Takes in a file's records in order and proves that its blocks can be addressed on the device.
class ExtentProof {
 public:
  explicit ExtentProof(std::uint64_t file_size);

  /// @throws ExtentRefused
  void add(const FiemapRecord& record);

  /// Everything of the file is there; further records are not needed.
  [[nodiscard]] bool covered() const noexcept { return end_ >= needed_; }
  /// Where the next record must begin.
  [[nodiscard]] std::uint64_t end() const noexcept { return end_; }

  /// @throws ExtentRefused(kNotCovered)
  [[nodiscard]] std::vector<Extent> finish() &&;

 private:
  std::uint64_t needed_;  ///< the file's size, rounded up
  std::uint64_t end_ = 0;
  std::vector<Extent> extents_;
};

}  // namespace tutti::runtime::detail
