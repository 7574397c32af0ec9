// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "device_geometry.h"

namespace tutti::kv {

// Starts one launch on the current stream of the geometry's device. `num_sms` limits it to so many
// multiprocessors, 0 uses all. @throws std::invalid_argument when a segment is too large for a launch,
// std::runtime_error when CUDA refuses the launch.
void enqueue(KernelMode mode, const DeviceGeometry& geometry, const TransferLaunch& launch,
             std::int64_t num_sms);

// What is done with checksums in a scatter. The numbers are part of the operator's interface.
enum class Verify : std::int64_t { kNone = 0, kFused = 1, kBefore = 2 };

// One launch, or two with Verify::kBefore: the second writes only what the first found to be good.
void enqueue_scatter(Verify verify, const DeviceGeometry& geometry, TransferLaunch launch,
                     std::int64_t num_sms);

}  // namespace tutti::kv
