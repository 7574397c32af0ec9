// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tutti/runtime/nvme/soft.hpp"

namespace tutti::runtime::nvme::soft {

/// The blocks of one namespace.
class Storage {
 public:
  /// @throws InvalidArgument, SystemError
  explicit Storage(const SoftNamespace& settings);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  [[nodiscard]] std::uint64_t blocks() const noexcept { return blocks_; }
  [[nodiscard]] std::uint32_t lba_bytes() const noexcept { return lba_bytes_; }
  [[nodiscard]] std::uint32_t metadata_bytes() const noexcept { return metadata_bytes_; }

  /// Moves bytes between `place` and the pieces. @returns false when the image refuses.
  [[nodiscard]] bool read(std::uint64_t place, std::span<const std::span<std::byte>> pieces) noexcept;
  [[nodiscard]] bool write(std::uint64_t place, std::span<const std::span<std::byte>> pieces) noexcept;
  [[nodiscard]] bool flush() noexcept;

 private:
  std::uint64_t blocks_ = 0;
  std::uint32_t lba_bytes_;
  std::uint32_t metadata_bytes_;
  int fd_ = -1;
  std::byte* memory_ = nullptr;
  std::uint64_t bytes_ = 0;
};

}  // namespace tutti::runtime::nvme::soft
