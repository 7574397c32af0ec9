// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "transfer_plan.h"

namespace tutti::kv {

// For scatters whose ids are each used once a layer (make_transfer_plan checks that): proves that no two
// planes write the same byte. `storages[plane.storage]` is where the storage begins; storages may share
// memory.
// @throws std::invalid_argument naming the two blocks.
void require_planes_apart(const TransferPlan& plan, std::span<std::byte* const> storages);

}  // namespace tutti::kv
