// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "tutti/runtime/nvme/core/stripe.hpp"

namespace tutti::runtime::detail {

using nvme::first_piece;
using nvme::Stripe;
using nvme::StripePiece;

/// Calls `visit` with the pieces of a range, in the target's order. With one shard the whole range is one.
template <typename Visit>
void for_each_piece(const Stripe& stripe, std::uint64_t offset, std::uint64_t length, Visit visit) {
  while (length > 0) {
    const StripePiece piece = first_piece(stripe, offset, length);
    visit(piece);
    offset += piece.length;
    length -= piece.length;
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
