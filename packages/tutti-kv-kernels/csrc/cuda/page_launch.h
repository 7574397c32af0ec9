// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "page_form.h"
#include "transfer_launch.h"

namespace tutti::kv {

// How a launch over pages is cut into units, one a block of threads. Neighbouring blocks work on different
// pages. Units of slots' rests, which have no page, come last.
struct PageCut {
  FastDivisor pages;          // of all segments
  FastDivisor segment_pages;  // of one segment
  FastDivisor parts;
  FastDivisor run_vectors;
  FastDivisor rest_units;  // of one segment
  std::uint32_t page_vectors;
  std::uint32_t segment_units;
  std::uint32_t page_blocks;  // blocks that have pages
  std::uint32_t blocks;
  std::int64_t run_stride;
  std::int64_t used_bytes;  // of a segment's slot
};

// The only layer's planes, where a cache has one layer with at most two of them: a parameter of the launch.
struct OneLayerTable {
  static constexpr std::uint32_t kMaxPlanes = 2;
  std::byte* bases[kMaxPlanes];
  std::int64_t block_strides[kMaxPlanes];
  std::uint32_t num_ids;
};

// One launch for any number of segments and layers.
[[nodiscard]] cudaError_t launch_pages(KernelMode mode, const PageCut& cut, const TransferLaunch& launch,
                                       const OneLayerTable& table, cudaStream_t stream) noexcept;
[[nodiscard]] cudaError_t launch_pages(KernelMode mode, const PageCut& cut, const TransferLaunch& launch,
                                       const ResidentTable& table, cudaStream_t stream) noexcept;

}  // namespace tutti::kv
