// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "tutti/runtime/nvme/core/annotate.hpp"
#include "tutti/runtime/nvme/core/command.hpp"
#include "tutti/runtime/nvme/core/data_window.hpp"
#include "tutti/runtime/nvme/core/extent_table.hpp"
#include "tutti/runtime/nvme/core/stripe.hpp"

namespace tutti::runtime::nvme {

/// What one shard of a target is: where its blocks are, and what a command to its controller may carry.
struct ShardPlace {
  ExtentTable extents;
  std::uint32_t block_shift = 9;      ///< 9 for 512-byte blocks, 12 for 4 KiB
  std::uint64_t max_bytes = 0;        ///< of one command (MDTS); at least one block
  std::uint64_t boundary_blocks = 0;  ///< no command crosses a multiple of it (NOIOB); 0: no such rule
};

/// One device command's worth of a request.
struct CommandPiece {
  std::uint32_t shard = 0;
  std::uint64_t slba = 0;
  std::uint32_t blocks = 0;
  std::uint64_t memory_offset = 0;  ///< in the window
  std::uint64_t length = 0;         ///< bytes
  DataPointer data;
};

enum class SplitStep : std::uint8_t {
  kPiece,
  kDone,
  kNoBlock,   ///< part of the request has no extent
  kNoMemory,  ///< part of the memory is not in the window, or not described on whole blocks
};

/// Walks one request: cuts at stripe units, extents, the controller's limits and what a data pointer can say
/// without a list of its own. Offsets and length are multiples of the largest block.
struct Splitter {
  Stripe stripe;
  const ShardPlace* shards = nullptr;   ///< [stripe.shards]
  const DataWindow* windows = nullptr;  ///< [stripe.shards], the same memory through each controller
  std::uint64_t target_offset = 0;
  std::uint64_t memory_offset = 0;
  std::uint64_t left = 0;

  TUTTI_HD SplitStep next(CommandPiece& piece) noexcept {
    if (left == 0) {
      return SplitStep::kDone;
    }
    const StripePiece part = first_piece(stripe, target_offset, left);
    const ShardPlace& shard = shards[part.shard];
    std::uint64_t lba = 0;
    std::uint64_t blocks = find_block(shard.extents, part.shard_offset >> shard.block_shift, lba);
    if (blocks == 0) {
      return SplitStep::kNoBlock;
    }
    if (shard.boundary_blocks != 0) {
      const std::uint64_t to_boundary = shard.boundary_blocks - lba % shard.boundary_blocks;
      blocks = blocks < to_boundary ? blocks : to_boundary;
    }
    blocks = blocks < kMaxBlocksPerCommand ? blocks : kMaxBlocksPerCommand;
    std::uint64_t bytes = blocks << shard.block_shift;
    bytes = bytes < part.length ? bytes : part.length;
    bytes = bytes < shard.max_bytes ? bytes : shard.max_bytes;
    bytes = describe(windows[part.shard], memory_offset, bytes, piece.data);
    if (bytes == 0 || (bytes & ((std::uint64_t{1} << shard.block_shift) - 1)) != 0) {
      return SplitStep::kNoMemory;
    }
    piece.shard = part.shard;
    piece.slba = lba;
    piece.blocks = static_cast<std::uint32_t>(bytes >> shard.block_shift);
    piece.memory_offset = memory_offset;
    piece.length = bytes;
    target_offset += bytes;
    memory_offset += bytes;
    left -= bytes;
    return SplitStep::kPiece;
  }
};

}  // namespace tutti::runtime::nvme
