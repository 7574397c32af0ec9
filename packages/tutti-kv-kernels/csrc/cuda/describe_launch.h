// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "device_checks.h"
#include "device_geometry.h"

namespace tutti::kv {

using OptionalTensor = std::optional<Tensor>;

// The tensors of one launch, as the operators name them.
struct LaunchTensors {
  const Tensor& block_ids;
  const Tensor& slots;
  const OptionalTensor& layers;
  const OptionalTensor& token_ranges;
  const OptionalTensor& read_status;
  const OptionalTensor& checksums;
  const OptionalTensor& status;
  const OptionalTensor& workspace;
};

inline constexpr std::int64_t kWorkspaceWords = sizeof(SegmentSums) / sizeof(std::int64_t);

// Checks tensors and window and makes the geometry of a device.
// @throws std::invalid_argument naming the argument and the rule.
[[nodiscard]] DeviceGeometry prepare_geometry(const std::vector<Tensor>& storages, const Tensor& planes,
                                              const Tensor& window, std::int64_t slot_bytes, bool by_tokens);

// What `rows` x `columns` ids must fulfil for `segments` slots. @throws std::invalid_argument.
void require_shape(const DeviceGeometry& geometry, std::int64_t segments, std::int64_t rows,
                   std::int64_t columns);

// The pointers of a launch, every tensor checked. @throws std::invalid_argument likewise.
[[nodiscard]] TransferLaunch describe_launch(const DeviceGeometry& geometry, const LaunchTensors& tensors);

}  // namespace tutti::kv
