// SPDX-License-Identifier: Apache-2.0
#include "describe_launch.h"

#include "../message.h"
#include "driver.h"

namespace tutti::kv {
namespace {

// The sizes that all tensors of a launch have in common.
void describe_shape(TransferLaunch& launch, const DeviceGeometry& geometry, const LaunchTensors& tensors) {
  require_layout(tensors.slots, ScalarType::Long, {-1}, "slots");
  require_layout(tensors.block_ids, ScalarType::Long, {-1, -1}, "block_ids");
  const std::int64_t segments = tensors.slots.numel();
  const std::int64_t rows = tensors.block_ids.size(0);
  const std::int64_t columns = tensors.block_ids.size(1);
  require_shape(geometry, segments, rows, columns);
  if (tensors.token_ranges.has_value() != (geometry.by_tokens != 0)) {
    refuse("token_ranges go with a geometry prepared by tokens, and only with one");
  }
  launch.window = geometry.window.data;
  launch.slot_bytes = geometry.window.slot_bytes;
  launch.num_slots = geometry.num_slots();
  launch.segments = static_cast<std::uint32_t>(segments);
  launch.columns = static_cast<std::uint32_t>(columns);
  launch.rows = FastDivisor::of(static_cast<std::uint32_t>(rows));
  launch.num_layers = static_cast<std::uint32_t>(geometry.num_layers);
  launch.granule_shift = geometry.granule_shift;
}

}  // namespace

void require_shape(const DeviceGeometry& geometry, std::int64_t segments, std::int64_t rows,
                   std::int64_t columns) {
  if (rows < 1 || segments % rows != 0 || columns < 1) {
    refuse("block_ids must have a row for each of the ", segments,
           " slots, or for every k-th part of them, got ", rows, " rows of ", columns);
  }
  if (geometry.block_bytes > geometry.window.slot_bytes / columns) {
    refuse("slot_bytes ", geometry.window.slot_bytes, " is too small for a segment of ", columns,
           " blocks of ", geometry.block_bytes, " bytes");
  }
}

DeviceGeometry prepare_geometry(const std::vector<Tensor>& storages, const Tensor& planes,
                                const Tensor& window, std::int64_t slot_bytes, bool by_tokens) {
  const std::int32_t device = require_one_device(storages);
  require_layout(window, ScalarType::Byte, {-1}, "window");
  if (slot_bytes <= 0) {
    refuse("slot_bytes must be positive, got ", slot_bytes);
  }
  const DeviceWindow device_window{device_address(window, "window", device), window.numel(), slot_bytes};
  std::vector<std::byte*> bases;
  std::vector<std::int64_t> sizes;
  for (std::size_t i = 0; i < storages.size(); ++i) {
    require_layout(storages[i], ScalarType::Byte, {-1}, "pages");
    bases.push_back(static_cast<std::byte*>(storages[i].data_ptr()));
    sizes.push_back(storages[i].numel());
    require_disjoint({bases[i], sizes[i]}, {device_window.data, device_window.bytes}, i);
  }
  return make_device_geometry(make_layers(require_planes(planes), sizes), bases, device_window, device,
                              by_tokens);
}

TransferLaunch describe_launch(const DeviceGeometry& geometry, const LaunchTensors& tensors) {
  const std::int32_t device = geometry.device;
  TransferLaunch launch{};
  describe_shape(launch, geometry, tensors);
  const std::int64_t n = launch.segments;
  launch.block_ids =
      optional_address<std::int64_t>(tensors.block_ids, ScalarType::Long, {-1, -1}, "block_ids", device);
  launch.slots = optional_address<std::int64_t>(tensors.slots, ScalarType::Long, {n}, "slots", device);
  launch.layer_of_segment =
      optional_address<std::int64_t>(tensors.layers, ScalarType::Long, {n}, "layers", device);
  launch.token_ranges =
      optional_address<std::int64_t>(tensors.token_ranges, ScalarType::Long, {n, 2}, "token_ranges", device);
  launch.read_status =
      optional_address<std::int32_t>(tensors.read_status, ScalarType::Int, {n}, "read_status", device);
  launch.checksums =
      optional_address<std::int64_t>(tensors.checksums, ScalarType::Long, {n}, "checksums", device);
  launch.status = optional_address<std::int32_t>(tensors.status, ScalarType::Int, {n}, "status", device);
  if (tensors.checksums) {
    if (!tensors.workspace || !tensors.workspace->is_cuda() ||
        tensors.workspace->numel() < n * kWorkspaceWords) {
      refuse("workspace must have ", kWorkspaceWords, " zeros for each of the ", n, " slots, on the device");
    }
    launch.sums =
        optional_address<SegmentSums>(tensors.workspace, ScalarType::Long, {-1}, "workspace", device);
  }
  return launch;
}

}  // namespace tutti::kv
