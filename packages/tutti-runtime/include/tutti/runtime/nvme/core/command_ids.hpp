// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "tutti/runtime/nvme/core/annotate.hpp"

namespace tutti::runtime::nvme {

/// Command identifiers: a slot in the low bits, the slot's generation above. A completion that comes twice,
/// or for a command that was given up, names an earlier generation and belongs to nobody. One owner at a
/// time; the memory is the caller's.
struct CommandIds {
  static constexpr std::uint16_t kNone = 0xffff;  ///< never handed out: the specification keeps it for itself

  std::uint16_t* ids = nullptr;         ///< [capacity] the identifier in use, or to use next, of each slot
  std::uint16_t* free_slots = nullptr;  ///< [capacity] stack
  std::uint8_t* in_use = nullptr;       ///< [capacity]
  std::uint32_t capacity = 0;           ///< 1 to 2^14 slots
  std::uint32_t free_count = 0;
  std::uint32_t slot_bits = 0;

  TUTTI_HD void reset() noexcept {
    slot_bits = 0;
    while ((1U << slot_bits) < capacity) {
      ++slot_bits;
    }
    free_count = capacity;
    for (std::uint32_t slot = 0; slot < capacity; ++slot) {
      ids[slot] = static_cast<std::uint16_t>(slot);
      free_slots[slot] = static_cast<std::uint16_t>(capacity - 1 - slot);
      in_use[slot] = 0;
    }
  }

  [[nodiscard]] TUTTI_HD std::uint32_t slot_of(std::uint16_t id) const noexcept {
    return id & ((1U << slot_bits) - 1U);
  }

  /// @returns kNone when all are in use.
  [[nodiscard]] TUTTI_HD std::uint16_t take() noexcept {
    if (free_count == 0) {
      return kNone;
    }
    const std::uint32_t slot = free_slots[--free_count];
    in_use[slot] = 1;
    return ids[slot];
  }

  /// Whether this very identifier is in use, not an earlier one of its slot.
  [[nodiscard]] TUTTI_HD bool owns(std::uint16_t id) const noexcept {
    const std::uint32_t slot = slot_of(id);
    return slot < capacity && in_use[slot] != 0 && ids[slot] == id;
  }

  /// Must be owned. The next command of this slot gets another identifier.
  TUTTI_HD void give_back(std::uint16_t id) noexcept {
    const std::uint32_t slot = slot_of(id);
    in_use[slot] = 0;
    // The last generation is left out, so that no identifier has all bits set.
    const std::uint32_t generation = ((id >> slot_bits) + 1U) % ((0x10000U >> slot_bits) - 1U);
    ids[slot] = static_cast<std::uint16_t>((generation << slot_bits) | slot);
    free_slots[free_count++] = static_cast<std::uint16_t>(slot);
  }
};

}  // namespace tutti::runtime::nvme
