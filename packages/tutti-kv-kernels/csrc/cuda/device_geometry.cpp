// SPDX-License-Identifier: Apache-2.0
#include "device_geometry.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "../message.h"

namespace tutti::kv {
namespace {

// FastDivisor's range.
constexpr std::int64_t kMaxNumber = std::numeric_limits<std::int32_t>::max();

// The lowest set bit of everything that is noted, which is the largest power of two that divides it all.
class Alignment {
 public:
  void note(std::int64_t value) noexcept { bits_ |= static_cast<std::uint64_t>(value); }
  void note(const void* address) noexcept { bits_ |= reinterpret_cast<std::uintptr_t>(address); }
  [[nodiscard]] std::int64_t up_to(std::int64_t largest) const noexcept {
    const std::uint64_t bits = bits_ | static_cast<std::uint64_t>(largest);
    return static_cast<std::int64_t>(std::uint64_t{1} << std::countr_zero(bits));
  }

 private:
  std::uint64_t bits_ = 0;
};

const std::vector<Plane>& planes_of(const Layer& layer, bool by_tokens) {
  return by_tokens ? layer.planes : layer.merged;
}

void note_addresses(Alignment& alignment, const Plane& plane, std::span<std::byte* const> bases) {
  alignment.note(bases[static_cast<std::size_t>(plane.storage)] + plane.offset);
  alignment.note(plane.num_blocks > 1 ? plane.block_stride : 0);
  alignment.note(plane.tokens_per_block > 1 ? plane.token_stride : 0);
  for (int dim = 0; dim < Plane::kDims; ++dim) {
    alignment.note(plane.counts[dim] > 1 ? plane.strides[dim] : 0);
  }
  alignment.note(plane.run_bytes);
}

Access access_for(std::int64_t alignment) noexcept {
  return alignment >= 16 ? Access::kSixteen : alignment >= 8 ? Access::kEight : Access::kPieces;
}

std::uint32_t narrow(std::int64_t value, const char* what) {
  if (value < 0 || value > kMaxNumber) {
    refuse(what, " must be at most ", kMaxNumber, " on a CUDA device, got ", value);
  }
  return static_cast<std::uint32_t>(value);
}

TablePlane lower_plane(const Plane& plane, std::span<std::byte* const> bases, std::uint32_t shift,
                       std::uint32_t first_granule) {
  TablePlane lowered{};
  lowered.base = bases[static_cast<std::size_t>(plane.storage)] + plane.offset;
  lowered.block_stride = plane.block_stride;
  lowered.token_stride = plane.token_stride;
  std::copy_n(plane.strides, Plane::kDims, lowered.strides);
  lowered.tokens_per_block = FastDivisor::of(narrow(plane.tokens_per_block, "tokens_per_block"));
  lowered.counts[0] = FastDivisor::of(narrow(plane.counts[1], "a plane's count"));
  lowered.counts[1] = FastDivisor::of(narrow(plane.counts[2], "a plane's count"));
  lowered.run = FastDivisor::of(narrow(plane.run_bytes >> shift, "a plane's run, in granules,"));
  lowered.first_granule = first_granule;
  lowered.is_one_run = plane.counts[0] * plane.counts[1] * plane.counts[2] == 1 ? 1 : 0;
  lowered.token_dim = static_cast<std::int32_t>(plane.token_dim);
  lowered.first_token = static_cast<std::int32_t>(narrow(plane.first_token, "first_token"));
  return lowered;
}

void lower_layer(DeviceGeometry& geometry, const Layer& layer, std::span<std::byte* const> bases) {
  TableLayer lowered{};
  lowered.first_plane = static_cast<std::uint32_t>(geometry.num_planes);
  lowered.any_negative_id = layer.planes.front().token_dim == Plane::kBlockIsToken ? 1 : 0;
  lowered.num_ids = narrow(layer.num_ids, "the number of block ids");
  lowered.block_tokens = narrow(layer.block_tokens, "the tokens of a block");
  std::int64_t granule = 0;
  for (const Plane& plane : planes_of(layer, geometry.by_tokens != 0)) {
    geometry.planes[geometry.num_planes++] =
        lower_plane(plane, bases, geometry.granule_shift, static_cast<std::uint32_t>(granule));
    granule += packed_bytes(plane) >> geometry.granule_shift;
  }
  lowered.end_plane = static_cast<std::uint32_t>(geometry.num_planes);
  lowered.block_granules = FastDivisor::of(narrow(granule, "a block's bytes, in granules,"));
  geometry.layers[geometry.num_layers++] = lowered;
  geometry.block_bytes = std::max(geometry.block_bytes, layer.block_bytes);
}

}  // namespace

DeviceGeometry make_device_geometry(const std::vector<Layer>& layers, std::span<std::byte* const> bases,
                                    const DeviceWindow& window, std::int32_t device, bool by_tokens) {
  Alignment addresses;
  Alignment runs;
  addresses.note(window.data);
  addresses.note(window.slot_bytes);
  std::size_t planes = 0;
  for (const Layer& layer : layers) {
    planes += planes_of(layer, by_tokens).size();
    for (const Plane& plane : planes_of(layer, by_tokens)) {
      note_addresses(addresses, plane, bases);
      runs.note(plane.run_bytes);
    }
  }
  if (planes > static_cast<std::size_t>(DeviceGeometry::kMaxPlanes) ||
      layers.size() > static_cast<std::size_t>(DeviceGeometry::kMaxLayers)) {
    refuse("a launch on a CUDA device takes at most ", DeviceGeometry::kMaxLayers, " layers with ",
           DeviceGeometry::kMaxPlanes, " planes, got ", layers.size(), " layers with ", planes,
           "; use several calls");
  }
  for (std::size_t i = 0; by_tokens && i < layers.size(); ++i) {
    if (layers[i].block_tokens == 0) {
      refuse("token_ranges cannot be applied: tokens do not divide the blocks of layer ", i);
    }
  }
  DeviceGeometry geometry{};
  geometry.format = DeviceGeometry::kFormat;
  geometry.device = device;
  geometry.access = access_for(addresses.up_to(16));
  geometry.by_tokens = by_tokens ? 1 : 0;
  geometry.window = window;
  if (geometry.access == Access::kSixteen && !by_tokens) {
    geometry.pages = find_page_form(layers);
  }
  // Pieces are accessed whole, so they must be aligned too; wider granules only say how far runs reach.
  const std::int64_t granule =
      geometry.access == Access::kPieces ? addresses.up_to(4) : runs.up_to(tile_bytes(geometry.access));
  geometry.granule_shift = static_cast<std::uint32_t>(std::countr_zero(static_cast<std::uint64_t>(granule)));
  for (const Layer& layer : layers) {
    lower_layer(geometry, layer, bases);
  }
  return geometry;
}

}  // namespace tutti::kv
