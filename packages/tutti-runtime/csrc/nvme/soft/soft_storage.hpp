// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "soft_data.hpp"
#include "tutti/runtime/detail/cuda_memory.hpp"
#include "tutti/runtime/nvme/soft.hpp"
#include "tutti/runtime/ordering.hpp"
#include "tutti/runtime/shim/cuda_launch.hpp"

namespace tutti::runtime::nvme::soft {

/// The blocks of one namespace.
class Storage {
 public:
  /// @throws InvalidArgument, SystemError
  /// `device`: a CUDA device whose memory is reached too, or kAnyDevice.
  Storage(const SoftNamespace& settings, int device);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  [[nodiscard]] std::uint64_t blocks() const noexcept { return blocks_; }
  [[nodiscard]] std::uint32_t lba_bytes() const noexcept { return lba_bytes_; }
  [[nodiscard]] std::uint32_t metadata_bytes() const noexcept { return metadata_bytes_; }

  /// Moves bytes between `place` and the pieces. @returns false when the image or the device refuses.
  [[nodiscard]] bool read(std::uint64_t place, const DataPieces& data) noexcept;
  [[nodiscard]] bool write(std::uint64_t place, const DataPieces& data) noexcept;
  [[nodiscard]] bool flush() noexcept;
  /// Of the last read() or write() that a CUDA device took part in.
  [[nodiscard]] Duration last_copy() const noexcept { return last_copy_; }

  /// Copies to and from the device once, on the thread that will. A driver makes what copies need when they
  /// are first used, and may wait for the device then: for a kernel that waits for this drive.
  /// @throws SystemError
  void warm_up();

 private:
  void close_all() noexcept;
  [[nodiscard]] bool move_on_device(std::uint64_t place, const DataPieces& data, bool read) noexcept;
  [[nodiscard]] bool copy(std::byte* host, std::span<std::byte> piece, bool read) noexcept;
  [[nodiscard]] bool bounce(std::uint64_t place, std::span<std::byte> piece, bool read) noexcept;
  [[nodiscard]] bool read_image(std::uint64_t place, std::span<std::byte> piece) noexcept;
  [[nodiscard]] bool write_image(std::uint64_t place, std::span<const std::byte> piece) noexcept;

  std::uint64_t blocks_ = 0;
  std::uint32_t lba_bytes_;
  std::uint32_t metadata_bytes_;
  int fd_ = -1;
  std::byte* memory_ = nullptr;
  std::uint64_t bytes_ = 0;
  std::unique_ptr<shim::WorkStream> stream_;  ///< with a device
  std::unique_ptr<detail::HostPin> pin_;      ///< of the memory or `bounce_`: no copy needs another stop
  Duration last_copy_{0};
  std::vector<std::byte> bounce_;  ///< pinned, between an image and a device
};

}  // namespace tutti::runtime::nvme::soft
