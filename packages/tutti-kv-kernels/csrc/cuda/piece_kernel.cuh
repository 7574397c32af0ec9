// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "segment.cuh"

namespace tutti::kv {

// Runs whose addresses or lengths are no multiple of a checksum word: a lane takes one word of the packed
// side at a time and moves it in pieces of a granule (1, 2 or 4 bytes).
inline constexpr std::uint32_t kPieceTileWords = kLanes * 8;

__device__ __forceinline__ std::uint64_t load_piece(const std::byte* from, std::uint32_t bytes) {
  switch (bytes) {
    case 4:
      return *reinterpret_cast<const std::uint32_t*>(from);
    case 2:
      return *reinterpret_cast<const std::uint16_t*>(from);
    default:
      return *reinterpret_cast<const std::uint8_t*>(from);
  }
}

__device__ __forceinline__ void store_piece(std::byte* to, std::uint64_t value, std::uint32_t bytes) {
  switch (bytes) {
    case 4:
      *reinterpret_cast<std::uint32_t*>(to) = static_cast<std::uint32_t>(value);
      break;
    case 2:
      *reinterpret_cast<std::uint16_t*>(to) = static_cast<std::uint16_t>(value);
      break;
    default:
      *reinterpret_cast<std::uint8_t*>(to) = static_cast<std::uint8_t>(value);
  }
}

// Moves the pieces of the word at byte `word_at` of the segment and returns the word.
template <KernelMode kMode, bool kTokens, typename Table>
__device__ __forceinline__ std::uint64_t move_word(const Table& table, const TransferLaunch& launch,
                                                   const Segment& segment, std::int64_t word_at) {
  const std::uint32_t bytes = 1U << launch.granule_shift;
  const std::uint32_t used = segment.used_granules;
  std::uint64_t word = 0;
  for (std::uint32_t inside = 0; inside < kWordBytes; inside += bytes) {
    const std::int64_t at = word_at + inside;
    const std::int64_t granule = at >> launch.granule_shift;
    std::byte* page = nullptr;
    if constexpr (kMode != KernelMode::kSumSlots) {
      if (granule < used) {
        page = locate_granule<kTokens>(table, *segment.layer, segment.ids, segment.tokens,
                                       static_cast<std::uint32_t>(granule), launch.granule_shift);
      }
    }
    std::uint64_t piece = 0;
    if constexpr (kMode == KernelMode::kGather || kMode == KernelMode::kSumPages) {
      piece = page == nullptr ? 0 : load_piece(page, bytes);
    } else {
      piece = granule < used ? load_piece(segment.slot + at, bytes) : 0;
    }
    if constexpr (kMode == KernelMode::kGather) {
      if (at < launch.slot_bytes) {
        store_piece(segment.slot + at, piece, bytes);
      }
    } else if constexpr (kMode == KernelMode::kScatter) {
      if (page != nullptr) {
        store_piece(page, piece, bytes);
      }
    }
    word |= piece << (inside * 8);
  }
  return word;
}

// Moves every `step`-th tile from `tile` on and returns this lane's part of the checksum's sum.
template <KernelMode kMode, bool kSum, bool kTokens, typename Table>
__device__ __forceinline__ std::uint64_t move_piece_tiles(const Table& table, const TransferLaunch& launch,
                                                          const Segment& segment, std::uint32_t tile,
                                                          std::uint32_t end, std::uint32_t step) {
  const std::int64_t end_byte = kMode == KernelMode::kGather ? launch.slot_bytes : segment.used_bytes;
  std::uint64_t sum = 0;
  for (; tile < end && segment.takes_part; tile += step) {
    for (std::uint32_t i = threadIdx.x % kLanes; i < kPieceTileWords; i += kLanes) {
      const std::int64_t index = std::int64_t{tile} * kPieceTileWords + i;
      if (index * kWordBytes >= end_byte) {
        break;
      }
      const std::uint64_t word = move_word<kMode, kTokens>(table, launch, segment, index * kWordBytes);
      if (kSum && index * kWordBytes < segment.used_bytes) {
        sum += mix_word(word, static_cast<std::uint64_t>(index));
      }
    }
  }
  return sum;
}

}  // namespace tutti::kv
