// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "transfer_plan.h"

namespace tutti::kv {

// Packs each segment's pages into its slot, fills the rest of the slot with zeros and writes the checksum of
// the packed bytes to checksums[segment].
void gather_cpu(const TransferPlan& plan, const std::byte* pages, std::byte* window, std::int64_t* checksums,
                std::int64_t threads) noexcept;

// Verifies each slot against checksums[segment], writes the outcome to matched[segment], and copies the pages
// of the segments that match. Pages of a segment that does not match are left as they are.
void scatter_cpu(const TransferPlan& plan, const std::byte* window, const std::int64_t* checksums,
                 std::byte* pages, bool* matched, std::int64_t threads) noexcept;

}  // namespace tutti::kv
