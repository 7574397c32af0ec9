// SPDX-License-Identifier: Apache-2.0
#include "page_kernel.cuh"

namespace tutti::kv {
namespace {

template <typename Shape>
__device__ __forceinline__ std::uint64_t sum_over_block(std::uint64_t sum) {
  __shared__ std::uint64_t sums[Shape::kWarps];
  sum = reduce_over_warp(sum);
  if (threadIdx.x % kLanes == 0) {
    sums[threadIdx.x / kLanes] = sum;
  }
  __syncthreads();
  sum = 0;
  for (std::uint32_t warp = 0; warp < Shape::kWarps; ++warp) {
    sum += sums[warp];
  }
  return sum;
}

template <KernelMode kMode, bool kSum, bool kStrided, typename Table>
__global__ __launch_bounds__(UnitShape<kMode, kSum>::kThreads) void page_kernel(
    const __grid_constant__ TransferLaunch launch, const __grid_constant__ PageCut cut,
    const __grid_constant__ Table table) {
  using Shape = UnitShape<kMode, kSum>;
  if (kMode == KernelMode::kGather && blockIdx.x >= cut.page_blocks) {
    fill_rest<Shape>(launch, cut);
    return;
  }
  const Unit unit = find_unit(launch, cut);
  const std::int64_t* const ids = launch.block_ids + std::int64_t{unit.row} * launch.columns;
  const std::int64_t id = kMode == KernelMode::kSumSlots ? kNoBlock : ids[unit.block];
  const PageSegment opened = open_pages(launch, unit.segment);
  const PagePlace place = place_of(table, cut, opened.layer, unit.part);
  const Closing closing = prepare_closing(launch, ids, unit.segment, place.num_ids);
  const bool takes_part = opened.status == Status::kOk;
  const std::int64_t in_slot = std::int64_t{unit.page} * cut.page_vectors + unit.vector;
  const UnitPlaces places{
      .page = static_cast<std::uint64_t>(id) < place.num_ids ? place.base + id * place.block_stride : nullptr,
      .slot = takes_part ? opened.slot + in_slot * kPageVectorBytes : nullptr};
  Shape unit_bytes;
  load_unit<kMode, kStrided>(unit_bytes, cut, unit, places);
  store_unit<kMode, kStrided>(unit_bytes, cut, unit, places);
  bool closes = unit.page == 0 && unit.vector < Shape::kThreads;
  std::uint64_t total = 0;
  if constexpr (kSum) {
    const std::uint64_t sum = sum_over_block<Shape>(sum_unit(unit_bytes, cut, unit));
    if (takes_part && threadIdx.x < kLanes) {
      SegmentSums& sums = launch.sums[unit.segment];
      closes = threadIdx.x == 0 && add_to_segment(sums, sum, 1, cut.segment_units, total);
      closes = __any_sync(kAllLanes, closes) != 0;
    }
  }
  if (closes && threadIdx.x < kLanes) {
    close_pages(launch, cut, opened, closing, ids, place.num_ids, unit.segment, total);
  }
}

template <KernelMode kMode, bool kSum, bool kStrided, typename Table>
cudaError_t start(const PageCut& cut, const TransferLaunch& launch, const Table& table,
                  cudaStream_t stream) noexcept {
  page_kernel<kMode, kSum, kStrided>
      <<<cut.blocks, UnitShape<kMode, kSum>::kThreads, 0, stream>>>(launch, cut, table);
  return cudaGetLastError();
}

template <bool kStrided, typename Table>
cudaError_t start_for_mode(KernelMode mode, const PageCut& cut, const TransferLaunch& launch,
                           const Table& table, cudaStream_t stream) noexcept {
  const bool sums = launch.sums != nullptr;
  switch (mode) {
    case KernelMode::kGather:
      return sums ? start<KernelMode::kGather, true, kStrided>(cut, launch, table, stream)
                  : start<KernelMode::kGather, false, kStrided>(cut, launch, table, stream);
    case KernelMode::kScatter:
      return sums ? start<KernelMode::kScatter, true, kStrided>(cut, launch, table, stream)
                  : start<KernelMode::kScatter, false, kStrided>(cut, launch, table, stream);
    case KernelMode::kSumPages:
      return start<KernelMode::kSumPages, true, kStrided>(cut, launch, table, stream);
    default:
      return start<KernelMode::kSumSlots, true, false>(cut, launch, table, stream);
  }
}

template <typename Table>
cudaError_t start_any(KernelMode mode, const PageCut& cut, const TransferLaunch& launch, const Table& table,
                      cudaStream_t stream) noexcept {
  return cut.run_vectors.divisor == cut.page_vectors ? start_for_mode<false>(mode, cut, launch, table, stream)
                                                     : start_for_mode<true>(mode, cut, launch, table, stream);
}

}  // namespace

cudaError_t launch_pages(KernelMode mode, const PageCut& cut, const TransferLaunch& launch,
                         const OneLayerTable& table, cudaStream_t stream) noexcept {
  return start_any(mode, cut, launch, table, stream);
}

cudaError_t launch_pages(KernelMode mode, const PageCut& cut, const TransferLaunch& launch,
                         const ResidentTable& table, cudaStream_t stream) noexcept {
  return start_any(mode, cut, launch, table, stream);
}

}  // namespace tutti::kv
