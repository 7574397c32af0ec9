// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "copy_runs.h"

namespace tutti::kv {

// Starts all copies on the device's copy engines: in batches where the driver has a call for that and no
// graph is captured, else with a call for each of them.
// @throws std::runtime_error when CUDA refuses.
void start_copies(const CopyRuns& runs, bool to_slots, cudaStream_t stream);

}  // namespace tutti::kv
