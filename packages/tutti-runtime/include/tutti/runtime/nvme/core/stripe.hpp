// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "tutti/runtime/nvme/core/annotate.hpp"

namespace tutti::runtime::nvme {

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

/// The first piece of a range. With one shard the whole range is one.
TUTTI_HD StripePiece first_piece(const Stripe& stripe, std::uint64_t offset, std::uint64_t length) noexcept {
  StripePiece piece;
  piece.target_offset = offset;
  piece.length = length;
  piece.shard_offset = offset;
  if (stripe.shards == 1) {
    return piece;
  }
  const std::uint64_t number = offset / stripe.unit;
  const std::uint64_t inside = offset % stripe.unit;
  piece.shard = static_cast<std::uint32_t>((number + stripe.rotation) % stripe.shards);
  piece.shard_offset = number / stripe.shards * stripe.unit + inside;
  piece.length = length < stripe.unit - inside ? length : stripe.unit - inside;
  return piece;
}

}  // namespace tutti::runtime::nvme
