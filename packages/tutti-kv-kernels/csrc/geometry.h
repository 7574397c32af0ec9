// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#ifdef __CUDACC__
#define TUTTI_KV_HD __host__ __device__
#else
#define TUTTI_KV_HD
#endif

namespace tutti::kv {

// One part of a layer's blocks, in bytes: where it is in memory and in which order it is packed.
//
// Block b's part of the plane is counts[0] x counts[1] x counts[2] runs of run_bytes; run (i, j, k) starts at
// block_address(b) + i * strides[0] + j * strides[1] + k * strides[2], and the runs are packed in that order,
// the last index fastest. A dimension that is not used has count 1 and stride 0.
struct Plane {
  static constexpr int kDims = 3;
  // token_dim of a plane in which a block is one token, and of one that tokens do not divide.
  static constexpr std::int64_t kBlockIsToken = 3;
  static constexpr std::int64_t kOpaque = -1;

  std::int64_t storage;  // index of the storage that holds it
  std::int64_t offset;   // of block 0 in the storage
  std::int64_t block_stride;
  std::int64_t num_blocks;
  // Ids that count tokens (slot mapping) split: id = block * tokens_per_block + token. Otherwise 1 and 0.
  std::int64_t tokens_per_block;
  std::int64_t token_stride;
  std::int64_t counts[kDims];
  std::int64_t strides[kDims];
  std::int64_t run_bytes;
  std::int64_t token_dim;    // the index into counts that counts tokens, or one of the constants above
  std::int64_t first_token;  // which token of the block index 0 of that dimension is

  friend bool operator==(const Plane&, const Plane&) = default;
};

// A block id that names no block: scatter leaves it out, gather packs zeros (where the caller allows it).
inline constexpr std::int64_t kNoBlock = -1;

[[nodiscard]] TUTTI_KV_HD constexpr std::int64_t ids_of(const Plane& plane) noexcept {
  return plane.num_blocks * plane.tokens_per_block;
}

// Whether ids count tokens (a slot mapping) rather than blocks.
[[nodiscard]] TUTTI_KV_HD constexpr bool counts_tokens(const Plane& plane) noexcept {
  return plane.token_dim == Plane::kBlockIsToken;
}

// First byte of block (or token) `id`, 0 <= id < ids_of(plane), from the start of the plane's storage.
[[nodiscard]] TUTTI_KV_HD constexpr std::int64_t block_address(const Plane& plane, std::int64_t id) noexcept {
  if (plane.tokens_per_block == 1) {
    return plane.offset + id * plane.block_stride;
  }
  return plane.offset + id / plane.tokens_per_block * plane.block_stride +
         id % plane.tokens_per_block * plane.token_stride;
}

// Bytes of one block's part of the plane when packed.
[[nodiscard]] TUTTI_KV_HD constexpr std::int64_t packed_bytes(const Plane& plane) noexcept {
  return plane.counts[0] * plane.counts[1] * plane.counts[2] * plane.run_bytes;
}

// Number of tokens in one block of the plane, 0 when tokens do not divide it.
[[nodiscard]] TUTTI_KV_HD constexpr std::int64_t tokens_of(const Plane& plane) noexcept {
  if (plane.token_dim == Plane::kOpaque) {
    return 0;
  }
  return counts_tokens(plane) ? 1 : plane.counts[plane.token_dim];
}

// One layer: its planes packed one after the other make a block, `block_bytes` long.
struct Layer {
  std::vector<Plane> planes;  // as the caller described them: the token dimension is there to be clipped
  std::vector<Plane> merged;  // the same bytes in the same order with the longest runs and the fewest planes
  std::int64_t block_bytes;
  std::int64_t num_ids;
  std::int64_t block_tokens;  // 0 when tokens do not divide its blocks
};

// The rows of the planes table that callers hand over: the layer's index, then the fields of Plane in order.
inline constexpr std::int64_t kPlaneColumns = 16;

// Reads and checks a planes table of `rows` rows of kPlaneColumns numbers, sorted by layer from 0 without
// gaps. @throws std::invalid_argument naming the row, the field and the rule: a plane that overlaps itself,
// reaches outside its storage (`storage_bytes[plane.storage]` bytes), or disagrees with its layer.
[[nodiscard]] std::vector<Layer> make_layers(std::span<const std::int64_t> table,
                                             std::span<const std::int64_t> storage_bytes);

// The same runs in the same packed order, with dimensions that continue each other collapsed, used
// dimensions last and the longest runs.
[[nodiscard]] Plane merge_dimensions(const Plane& plane) noexcept;

}  // namespace tutti::kv
