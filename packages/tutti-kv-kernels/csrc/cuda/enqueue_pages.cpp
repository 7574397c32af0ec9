// SPDX-License-Identifier: Apache-2.0
#include "enqueue_pages.h"

#include <optional>

#include "driver.h"
#include "page_launch.h"

namespace tutti::kv {
namespace {

std::int64_t ceil_div(std::int64_t value, std::int64_t divisor) { return (value + divisor - 1) / divisor; }

FastDivisor divisor_of(std::int64_t value) { return FastDivisor::of(static_cast<std::uint32_t>(value)); }

std::optional<PageCut> cut_pages(const DeviceGeometry& geometry, const TransferLaunch& launch,
                                 bool fills_slots) {
  constexpr std::int64_t kMaxSegmentUnits = 65535;  // SegmentSums count in 16 bits
  constexpr std::int64_t kUnitBytes = std::int64_t{kPageUnitVectors} * kPageVectorBytes;
  const PageForm& form = geometry.pages;
  const std::int64_t segment_pages = std::int64_t{launch.columns} * form.parts;
  const std::int64_t page_units = ceil_div(form.page_vectors, kPageUnitVectors);
  const std::int64_t used_bytes = segment_pages * form.page_vectors * kPageVectorBytes;
  const std::int64_t rest_units = fills_slots ? ceil_div(launch.slot_bytes - used_bytes, kUnitBytes) : 0;
  const std::int64_t segment_units = segment_pages * page_units;
  const std::int64_t blocks = (segment_units + rest_units) * launch.segments;
  if (segment_units > kMaxSegmentUnits || rest_units > INT32_MAX || blocks > INT32_MAX) {
    return std::nullopt;
  }
  return PageCut{.pages = divisor_of(segment_pages * launch.segments),
                 .segment_pages = divisor_of(segment_pages),
                 .parts = divisor_of(form.parts),
                 .run_vectors = divisor_of(form.run_vectors),
                 .rest_units = divisor_of(rest_units == 0 ? 1 : rest_units),
                 .page_vectors = form.page_vectors,
                 .segment_units = static_cast<std::uint32_t>(segment_units),
                 .page_blocks = static_cast<std::uint32_t>(segment_units * launch.segments),
                 .blocks = static_cast<std::uint32_t>(blocks),
                 .run_stride = form.run_stride,
                 .used_bytes = used_bytes};
}

OneLayerTable only_layer(const DeviceGeometry& geometry) {
  OneLayerTable table{};
  for (std::int32_t i = 0; i < geometry.num_planes; ++i) {
    table.bases[i] = geometry.planes[i].base;
    table.block_strides[i] = geometry.planes[i].block_stride;
  }
  table.num_ids = geometry.layers[0].num_ids;
  return table;
}

}  // namespace

bool enqueue_pages(KernelMode mode, const DeviceGeometry& geometry, const TransferLaunch& launch,
                   const LaunchOptions& options) {
  const bool fits_parameter = geometry.num_layers == 1 && geometry.pages.parts <= OneLayerTable::kMaxPlanes;
  if (geometry.pages.parts == 0 || (!fits_parameter && options.resident == nullptr)) {
    return false;
  }
  const std::optional<PageCut> cut = cut_pages(geometry, launch, mode == KernelMode::kGather);
  if (!cut) {
    return false;
  }
  const cudaStream_t stream = current_stream(geometry.device);
  require_cuda(fits_parameter ? launch_pages(mode, *cut, launch, only_layer(geometry), stream)
                              : launch_pages(mode, *cut, launch, resident_table(options.resident), stream),
               "launching a transfer of pages");
  return true;
}

}  // namespace tutti::kv
