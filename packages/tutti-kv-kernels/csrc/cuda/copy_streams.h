// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>

namespace tutti::kv {

// Starts the copies from index `first` to `end` on `stream`.
using StartCopies = std::function<cudaError_t(std::size_t first, std::size_t end, cudaStream_t stream)>;

// Spreads `count` copies over streams of the current device that only this direction uses, between what was
// put on `stream` before and what is put there later. One stream's copies follow each other with a gap in
// between; copies of several streams fill each other's gaps. For a few copies it is one stream, which may be
// `stream` itself.
// @throws std::runtime_error when CUDA refuses; `stream` is then behind the copies that were started.
void spread_copies(std::size_t count, bool to_slots, cudaStream_t stream, const StartCopies& start);

}  // namespace tutti::kv
