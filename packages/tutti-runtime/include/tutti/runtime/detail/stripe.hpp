// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace tutti::runtime::detail {

/// Round robin: unit k of the target is on shard (k + rotation) mod shards, there as unit k / shards.
struct Stripe {
  std::uint64_t unit = 0;      ///< bytes, a power of two
  std::uint32_t shards = 0;    ///< at least 1
  std::uint32_t rotation = 0;  ///< less than shards
};

/// A run of bytes that is contiguous in the target and in one shard.
struct StripePiece {
  std::uint32_t shard = 0;
  std::uint64_t shard_offset = 0;
  std::uint64_t target_offset = 0;
  std::uint64_t length = 0;

  friend bool operator==(const StripePiece&, const StripePiece&) = default;
};

/// Calls `visit` with the pieces of a range, in the target's order. With one shard the whole range is one.
template <typename Visit>
void for_each_piece(const Stripe& stripe, std::uint64_t offset, std::uint64_t length, Visit visit) {
  if (stripe.shards == 1) {
    visit(StripePiece{0, offset, offset, length});
    return;
  }
  while (length > 0) {
    const std::uint64_t number = offset / stripe.unit;
    const std::uint64_t inside = offset % stripe.unit;
    const std::uint64_t part = std::min(length, stripe.unit - inside);
    const auto shard = static_cast<std::uint32_t>((number + stripe.rotation) % stripe.shards);
    visit(StripePiece{shard, number / stripe.shards * stripe.unit + inside, offset, part});
    offset += part;
    length -= part;
  }
}

/// Most pieces that a range of `length` bytes can have.
[[nodiscard]] constexpr std::uint64_t most_pieces(const Stripe& stripe, std::uint64_t length) {
  return stripe.shards == 1 ? 1 : length / stripe.unit + 2;
}

/// The target's size when shard i holds `sizes[i]` bytes: everything before the first byte that no shard has.
/// At most INT64_MAX.
[[nodiscard]] constexpr std::uint64_t striped_size(const Stripe& stripe,
                                                   std::span<const std::uint64_t> sizes) {
  std::uint64_t least = INT64_MAX;
  for (std::uint32_t shard = 0; shard < stripe.shards; ++shard) {
    // The first byte that this shard lacks is in row `rows`, at the shard's place in the row.
    const std::uint64_t rows = sizes[shard] / stripe.unit;
    const std::uint64_t place = (shard + stripe.shards - stripe.rotation) % stripe.shards;
    std::uint64_t first_missing = 0;
    if (!__builtin_mul_overflow(rows * stripe.unit, std::uint64_t{stripe.shards}, &first_missing) &&
        !__builtin_add_overflow(first_missing, place * stripe.unit + sizes[shard] % stripe.unit,
                                &first_missing)) {
      least = std::min(least, first_missing);
    }
  }
  return least;
}

}  // namespace tutti::runtime::detail
