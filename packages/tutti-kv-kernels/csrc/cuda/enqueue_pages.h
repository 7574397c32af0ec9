// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "enqueue.h"

namespace tutti::kv {

// Starts one launch of a page kernel on the current stream of the geometry's device. False, with nothing
// started, where the geometry has no page form, the launch is too large for one, or a table of many layers
// has no copy on the device. @throws std::runtime_error when CUDA refuses the launch.
[[nodiscard]] bool enqueue_pages(KernelMode mode, const DeviceGeometry& geometry,
                                 const TransferLaunch& launch, const LaunchOptions& options);

}  // namespace tutti::kv
