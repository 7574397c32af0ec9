// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "tutti/runtime/ordering.hpp"

namespace tutti::runtime::testing {

/// Reads of `bytes` bytes (a multiple of 512, at most 8192) from a soft controller whose blocks are in
/// memory: `commands` of them are submitted, carried out and completed by the calling thread alone, `batch`
/// at a time in a queue of `depth` entries. @returns how long that took. @throws what Controller throws.
[[nodiscard]] Duration measure_soft_rate(std::uint64_t commands, std::uint32_t bytes, std::uint32_t depth,
                                         std::uint32_t batch);

}  // namespace tutti::runtime::testing
