// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "transfer_plan.h"

namespace tutti::kv {

// Packs each segment's blocks into its slot, fills the rest of the slot with zeros and writes the checksum of
// the packed bytes to checksums[segment]. Missing blocks and clipped tokens are packed as zeros.
// `storages[plane.storage]` is where the storage begins.
void gather_cpu(const TransferPlan& plan, std::span<std::byte* const> storages, std::byte* window,
                std::int64_t* checksums, std::int64_t threads) noexcept;

// Verifies each slot against checksums[segment], writes the outcome to status[segment], and copies the blocks
// of the segments that match; those of other segments, missing blocks and clipped tokens are left as they
// are. A segment whose read_status is not 0 is not looked at; no read_status at all means that all were read.
void scatter_cpu(const TransferPlan& plan, const std::byte* window, const std::int64_t* checksums,
                 const std::int32_t* read_status, std::span<std::byte* const> storages, std::int32_t* status,
                 std::int64_t threads) noexcept;

}  // namespace tutti::kv
