// SPDX-License-Identifier: Apache-2.0
#include "geometry.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "message.h"

namespace tutti::kv {
namespace {

// Wide enough for the products of any two fields and the sum of a few of them.
using Wide = __int128;

constexpr Wide kLargest = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMaxFirstToken = std::int64_t{1} << 40;

struct Extent {
  std::int64_t count;
  std::int64_t stride;
};

// All repetitions of the plane's runs in memory: blocks, tokens, and the dimensions inside a block.
std::array<Extent, Plane::kDims + 2> extents_of(const Plane& plane) {
  return {Extent{plane.num_blocks, plane.block_stride}, Extent{plane.tokens_per_block, plane.token_stride},
          Extent{plane.counts[0], plane.strides[0]}, Extent{plane.counts[1], plane.strides[1]},
          Extent{plane.counts[2], plane.strides[2]}};
}

void check_fields(const Plane& plane, std::size_t row, std::size_t storages) {
  const auto need = [row](bool good, const char* rule, const char* field, std::int64_t value) {
    if (!good) {
      refuse("planes[", row, "]: ", field, " must be ", rule, ", got ", value);
    }
  };
  need(plane.storage >= 0 && static_cast<std::size_t>(plane.storage) < storages,
       "the index of one of the storages", "storage", plane.storage);
  need(plane.offset >= 0, "at least 0", "offset", plane.offset);
  need(plane.run_bytes > 0, "positive", "run_bytes", plane.run_bytes);
  need(plane.token_dim >= Plane::kOpaque && plane.token_dim <= Plane::kBlockIsToken, "-1 to 3", "token_dim",
       plane.token_dim);
  need(plane.first_token >= 0 && plane.first_token <= kMaxFirstToken, "0 to 2^40", "first_token",
       plane.first_token);
  need(plane.first_token == 0 || !counts_tokens(plane), "0 where a block is one token", "first_token",
       plane.first_token);
  for (const Extent& extent : extents_of(plane)) {
    need(extent.count > 0, "positive", "a count", extent.count);
    need(extent.stride >= 0, "at least 0", "a stride", extent.stride);
  }
}

// Last byte of the plane, as a distance from its first. Proves on the way that no two runs share a byte: each
// dimension, from the smallest stride on, steps over all that the smaller ones reach.
Wide reach_of(const Plane& plane, std::size_t row) {
  auto extents = extents_of(plane);
  std::sort(extents.begin(), extents.end(),
            [](const Extent& a, const Extent& b) { return a.stride < b.stride; });
  Wide reach = plane.run_bytes;
  for (const Extent& extent : extents) {
    if (extent.count == 1) {
      continue;
    }
    if (extent.stride < reach) {
      refuse("planes[", row, "] overlaps itself: it takes ", extent.count, " steps of ", extent.stride,
             " bytes over parts of ", static_cast<std::int64_t>(reach), " bytes");
    }
    reach += Wide{extent.count - 1} * extent.stride;
    if (reach > kLargest) {
      break;  // beyond any storage; another product might not fit
    }
  }
  return reach;
}

void check_plane(const Plane& plane, std::size_t row, std::span<const std::int64_t> storage_bytes) {
  check_fields(plane, row, storage_bytes.size());
  const std::int64_t room = storage_bytes[static_cast<std::size_t>(plane.storage)];
  const Wide end = plane.offset + reach_of(plane, row);
  if (end > room) {
    refuse("the layout reaches beyond pages: planes[", row, "] has ", plane.num_blocks,
           " blocks, block_stride ", plane.block_stride, ", run_bytes ", plane.run_bytes, ", from offset ",
           plane.offset, ", but storages[", plane.storage, "] has ", room, " bytes");
  }
}

Plane plane_of(std::span<const std::int64_t> row) {
  return {.storage = row[1],
          .offset = row[2],
          .block_stride = row[3],
          .num_blocks = row[4],
          .tokens_per_block = row[5],
          .token_stride = row[6],
          .counts = {row[7], row[8], row[9]},
          .strides = {row[10], row[11], row[12]},
          .run_bytes = row[13],
          .token_dim = row[14],
          .first_token = row[15]};
}

// Makes `plane` the union of itself and `next` when next's run follows plane's in every block.
bool join(Plane& plane, const Plane& next) noexcept {
  constexpr auto is_run = [](const Plane& p) { return p.counts[0] * p.counts[1] * p.counts[2] == 1; };
  if (!is_run(plane) || !is_run(next) || next.offset != plane.offset + plane.run_bytes) {
    return false;
  }
  Plane expected = plane;
  expected.offset = next.offset;
  expected.run_bytes = next.run_bytes;
  if (expected != next) {
    return false;
  }
  plane.run_bytes += next.run_bytes;
  return true;
}

void finish_layer(Layer& layer, std::size_t index) {
  Wide bytes = 0;
  std::int64_t tokens = 0;
  bool divided = true;
  for (const Plane& plane : layer.planes) {
    if (ids_of(plane) != ids_of(layer.planes.front())) {
      refuse("planes of layer ", index, " must have equally many blocks, got ", ids_of(layer.planes.front()),
             " and ", ids_of(plane));
    }
    if (counts_tokens(plane) != counts_tokens(layer.planes.front())) {
      refuse("planes of layer ", index, " must have ids that count alike: token_dim ", Plane::kBlockIsToken,
             " in all or in none, got ", layer.planes.front().token_dim, " and ", plane.token_dim);
    }
    bytes += packed_bytes(plane);
    divided = divided && plane.token_dim != Plane::kOpaque;
    tokens = std::max(tokens, plane.first_token + tokens_of(plane));
    const Plane merged = merge_dimensions(plane);
    if (layer.merged.empty() || !join(layer.merged.back(), merged)) {
      layer.merged.push_back(merged);
    }
  }
  if (bytes > kLargest) {
    refuse("blocks of layer ", index, " are larger than 2^63 bytes");
  }
  layer.block_bytes = static_cast<std::int64_t>(bytes);
  layer.num_ids = ids_of(layer.planes.front());
  layer.block_tokens = divided ? tokens : 0;
}

}  // namespace

Plane merge_dimensions(const Plane& plane) noexcept {
  Plane merged = plane;
  int used = Plane::kDims;  // index of the outermost dimension taken over so far
  for (int dim = Plane::kDims - 1; dim >= 0; --dim) {
    const std::int64_t count = plane.counts[dim];
    const std::int64_t stride = plane.strides[dim];
    if (count == 1) {
      continue;
    }
    if (used == Plane::kDims && stride == merged.run_bytes) {
      merged.run_bytes *= count;
    } else if (used < Plane::kDims && stride == merged.strides[used] * merged.counts[used]) {
      merged.counts[used] *= count;
    } else {
      --used;
      merged.counts[used] = count;
      merged.strides[used] = stride;
    }
  }
  for (int dim = 0; dim < used; ++dim) {
    merged.counts[dim] = 1;
    merged.strides[dim] = 0;
  }
  merged.token_dim = Plane::kOpaque;
  merged.first_token = 0;
  return merged;
}

std::vector<Layer> make_layers(std::span<const std::int64_t> table,
                               std::span<const std::int64_t> storage_bytes) {
  constexpr auto kColumns = static_cast<std::size_t>(kPlaneColumns);
  std::vector<Layer> layers;
  for (std::size_t row = 0; row < table.size() / kColumns; ++row) {
    const auto numbers = table.subspan(row * kColumns, kColumns);
    const Plane plane = plane_of(numbers);
    const std::int64_t layer = numbers[0];
    const auto count = static_cast<std::int64_t>(layers.size());
    if (layer < 0 || layer > count || layer < count - 1) {
      refuse("planes[", row, "]: layer must be sorted from 0 without gaps, got ", numbers[0]);
    }
    check_plane(plane, row, storage_bytes);
    if (layer == count) {
      layers.emplace_back();
    }
    layers.back().planes.push_back(plane);
  }
  if (layers.empty()) {
    refuse("planes must have at least one row");
  }
  for (std::size_t index = 0; index < layers.size(); ++index) {
    finish_layer(layers[index], index);
  }
  return layers;
}

}  // namespace tutti::kv
