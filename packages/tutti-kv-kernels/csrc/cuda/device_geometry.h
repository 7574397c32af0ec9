// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "../geometry.h"
#include "launch_transfer.h"
#include "page_form.h"

namespace tutti::kv {

// The packed side as the device sees it.
struct DeviceWindow {
  std::byte* data;
  std::int64_t bytes;
  std::int64_t slot_bytes;
};

// Layers, storages and window of a launch in the form that kernels read. A plain value: it may be kept as
// bytes and used for any number of launches, as long as the memory that it points to is there.
struct DeviceGeometry {
  static constexpr std::uint64_t kFormat = 0x7475747469646731ULL;
  static constexpr int kMaxPlanes = 480;
  static constexpr int kMaxLayers = 240;

  std::uint64_t format;  // kFormat
  std::int32_t device;
  std::int32_t num_planes;
  std::int32_t num_layers;
  std::uint32_t granule_shift;
  Access access;
  std::uint32_t by_tokens;
  std::int64_t block_bytes;  // of the layer with the largest blocks
  DeviceWindow window;
  PageForm pages;                 // none where accesses are narrower than a page kernel's
  TablePlane planes[kMaxPlanes];  // num_planes of them
  TableLayer layers[kMaxLayers];  // num_layers of them

  [[nodiscard]] std::int64_t num_slots() const noexcept { return window.bytes / window.slot_bytes; }
  // Whether launches need a copy of this in the device's memory.
  [[nodiscard]] bool is_large() const noexcept {
    return num_planes > SmallTable::kMaxPlanes || num_layers > SmallTable::kMaxLayers || by_tokens != 0;
  }
};

// The tables of a geometry that was copied to the device's memory at `resident`.
[[nodiscard]] inline ResidentTable resident_table(const std::byte* resident) noexcept {
  return {.planes = reinterpret_cast<const TablePlane*>(resident + offsetof(DeviceGeometry, planes)),
          .layers = reinterpret_cast<const TableLayer*>(resident + offsetof(DeviceGeometry, layers))};
}

// Lowers `layers` whose storages begin at `bases`. With `by_tokens`, planes keep their token dimension.
// @throws std::invalid_argument when there are more planes, layers or bytes than a launch can describe.
[[nodiscard]] DeviceGeometry make_device_geometry(const std::vector<Layer>& layers,
                                                  std::span<std::byte* const> bases,
                                                  const DeviceWindow& window, std::int32_t device,
                                                  bool by_tokens);

}  // namespace tutti::kv
