// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "transfer_launch.h"

namespace tutti::kv {

// Access widths in bytes; kPieces stands for whatever a granule below a checksum word is.
enum class Access : std::uint32_t { kPieces = 0, kEight = 8, kSixteen = 16 };

// Bytes of the packed side that a warp moves at a time.
[[nodiscard]] std::int64_t tile_bytes(Access access) noexcept;

struct LaunchShape {
  Access access;
  std::uint32_t blocks;
  std::uint32_t threads;
  cudaStream_t stream;
};

// One launch for any number of segments and layers. With launch.sums the checksum is taken on the way.
// Launches with token ranges take the large table, whatever their size: they are rare, and each kernel costs
// room.
[[nodiscard]] cudaError_t launch_transfer(KernelMode mode, const LaunchShape& shape,
                                          const TransferLaunch& launch, const SmallTable& table) noexcept;
[[nodiscard]] cudaError_t launch_transfer(KernelMode mode, const LaunchShape& shape,
                                          const TransferLaunch& launch, const ResidentTable& table) noexcept;

}  // namespace tutti::kv
