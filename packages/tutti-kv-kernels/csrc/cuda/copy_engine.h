// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "copy_runs.h"

namespace tutti::kv {

// Starts all copies on the device's copy engines, in one call where the driver has one for it.
// @throws std::invalid_argument when they would need one call each and are too many for that,
// std::runtime_error when CUDA refuses.
void start_copies(const CopyRuns& runs, bool to_slots, cudaStream_t stream);

}  // namespace tutti::kv
