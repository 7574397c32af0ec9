// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "device_geometry.h"

namespace tutti::kv {

// How a launch is made: on so many multiprocessors (0: all of them), and where the device has a copy of the
// geometry, which a large one needs.
struct LaunchOptions {
  std::int64_t num_sms;
  const std::byte* resident;  // null for a geometry that is not large
};

// Starts one launch on the current stream of the geometry's device. @throws std::invalid_argument when a
// segment is too large for a launch, std::runtime_error when CUDA refuses the launch.
void enqueue(KernelMode mode, const DeviceGeometry& geometry, const TransferLaunch& launch,
             const LaunchOptions& options);

// What is done with checksums in a scatter. The numbers are part of the operator's interface.
enum class Verify : std::int64_t { kNone = 0, kFused = 1, kBefore = 2 };

// One launch, or two with Verify::kBefore: the second writes only what the first found to be good.
void enqueue_scatter(Verify verify, const DeviceGeometry& geometry, TransferLaunch launch,
                     const LaunchOptions& options);

}  // namespace tutti::kv
