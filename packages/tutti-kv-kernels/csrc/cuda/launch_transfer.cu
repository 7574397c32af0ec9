// SPDX-License-Identifier: Apache-2.0
#include "launch_transfer.h"
#include "piece_kernel.cuh"
#include "transfer_kernel.cuh"

namespace tutti::kv {
namespace {

struct Pieces {};

template <KernelMode kMode, bool kSum, bool kTokens, typename Vector, typename Table>
__device__ __forceinline__ std::uint64_t move_any_tiles(const Table& table, const TransferLaunch& launch,
                                                        const Segment& segment, std::uint32_t tile,
                                                        std::uint32_t end, std::uint32_t step) {
  if constexpr (sizeof(Vector) >= kWordBytes) {
    return move_tiles<kMode, kSum, kTokens, Vector>(table, launch, segment, tile, end, step);
  } else {
    return move_piece_tiles<kMode, kSum, kTokens>(table, launch, segment, tile, end, step);
  }
}

template <KernelMode kMode, bool kSum, bool kTokens, typename Vector, typename Table>
__global__ __launch_bounds__(1024) void transfer_kernel(const __grid_constant__ TransferLaunch launch,
                                                        const __grid_constant__ Table table) {
  const std::uint32_t warps = blockDim.x / kLanes;
  for (std::uint32_t span = blockIdx.x; span < launch.total_spans; span += gridDim.x) {
    const std::uint32_t index = launch.segment_spans.quotient(span);
    const std::uint32_t first = (span - index * launch.segment_spans.divisor) * launch.span_tiles;
    const std::uint32_t end = min(first + launch.span_tiles, launch.segment_tiles);
    const std::uint32_t begin = first + threadIdx.x / kLanes;
    if (begin >= end) {
      continue;
    }
    const Segment segment = open_segment<kTokens>(launch, table, index);
    std::uint64_t sum =
        move_any_tiles<kMode, kSum, kTokens, Vector>(table, launch, segment, begin, end, warps);
    bool closes = begin == 0;
    if (kSum && segment.takes_part) {
      std::uint64_t total = 0;
      sum = sum_over_warp(sum);
      closes = threadIdx.x % kLanes == 0 &&
               add_to_segment(launch.sums[index], sum, (end - begin + warps - 1) / warps,
                              launch.segment_tiles, total);
      closes = __any_sync(kAllLanes, closes) != 0;
      sum = total;
    }
    if (closes) {
      close_segment(launch, segment, index, sum);
    }
  }
}

template <KernelMode kMode, bool kSum, bool kTokens, typename Vector, typename Table>
cudaError_t start(const LaunchShape& shape, const TransferLaunch& launch, const Table& table) noexcept {
  transfer_kernel<kMode, kSum, kTokens, Vector>
      <<<shape.blocks, shape.threads, 0, shape.stream>>>(launch, table);
  return cudaGetLastError();
}

template <KernelMode kMode, bool kSum, bool kTokens, typename Table>
cudaError_t start_for_access(const LaunchShape& shape, const TransferLaunch& launch,
                             const Table& table) noexcept {
  switch (shape.access) {
    case Access::kSixteen:
      return start<kMode, kSum, kTokens, Vector16>(shape, launch, table);
    case Access::kEight:
      return start<kMode, kSum, kTokens, Vector8>(shape, launch, table);
    default:
      return start<kMode, kSum, kTokens, Pieces>(shape, launch, table);
  }
}

template <bool kSum, bool kTokens, typename Table>
cudaError_t start_copy(KernelMode mode, const LaunchShape& shape, const TransferLaunch& launch,
                       const Table& table) noexcept {
  return mode == KernelMode::kGather
             ? start_for_access<KernelMode::kGather, kSum, kTokens>(shape, launch, table)
             : start_for_access<KernelMode::kScatter, kSum, kTokens>(shape, launch, table);
}

template <bool kTokens, typename Table>
cudaError_t start_for_mode(KernelMode mode, const LaunchShape& shape, const TransferLaunch& launch,
                           const Table& table) noexcept {
  switch (mode) {
    case KernelMode::kSumPages:
      return start_for_access<KernelMode::kSumPages, true, false>(shape, launch, table);
    case KernelMode::kSumSlots:
      return start_for_access<KernelMode::kSumSlots, true, false>(shape, launch, table);
    default:
      return launch.sums != nullptr ? start_copy<true, kTokens>(mode, shape, launch, table)
                                    : start_copy<false, kTokens>(mode, shape, launch, table);
  }
}

}  // namespace

std::int64_t tile_bytes(Access access) noexcept {
  return access == Access::kPieces
             ? std::int64_t{kPieceTileWords} * kWordBytes
             : std::int64_t{kLanes} * kVectorsPerLane * static_cast<std::int64_t>(access);
}

cudaError_t launch_transfer(KernelMode mode, const LaunchShape& shape, const TransferLaunch& launch,
                            const SmallTable& table) noexcept {
  return start_for_mode<false>(mode, shape, launch, table);
}

cudaError_t launch_transfer(KernelMode mode, const LaunchShape& shape, const TransferLaunch& launch,
                            const ResidentTable& table) noexcept {
  return launch.token_ranges == nullptr ? start_for_mode<false>(mode, shape, launch, table)
                                        : start_for_mode<true>(mode, shape, launch, table);
}

}  // namespace tutti::kv
