// SPDX-License-Identifier: Apache-2.0
#include "device_tables.hpp"

#include <algorithm>

namespace tutti::runtime::nvme {

DeviceTables::DeviceTables(TeamHost& teams, std::mutex& mutex, std::size_t drives)
    : teams_(teams), mutex_(mutex), sides_(drives) {
  for (Side& side : sides_) {
    side.places = local_array<ShardPlace>(teams, kPlaces);
    side.nsids = local_array<std::uint32_t>(teams, kPlaces);
    side.windows = local_array<DataWindow>(teams, kWindows);
  }
}

DriveTables DeviceTables::of(std::size_t drive) const noexcept {
  return {sides_[drive].places, sides_[drive].nsids, sides_[drive].windows};
}

template <typename T>
T* DeviceTables::copy(std::vector<Kept<T>>& kept, std::uint32_t slot, const T* from, std::size_t count) {
  kept.resize(std::max<std::size_t>(kept.size(), slot + 1));
  if (kept[slot].room < count) {
    const std::size_t room = std::max(count, 2 * kept[slot].room);
    kept[slot] = {local_array<T>(teams_, room), room};
  }
  upload(teams_, kept[slot].memory, from, count);
  return kept[slot].memory;
}

std::uint32_t DeviceTables::add_place(std::size_t drive, const ShardPlace& place, std::uint32_t nsid) {
  const std::lock_guard lock(mutex_);
  Side& side = sides_[drive];
  const std::uint32_t slot = side.free_places.take();
  if (slot == kNone) {
    return kNone;
  }
  try {
    ShardPlace own = place;
    own.extents.extents = copy(side.extents, slot, place.extents.extents, place.extents.count);
    upload(teams_, side.places + slot, &own, 1);
    upload(teams_, side.nsids + slot, &nsid, 1);
  } catch (...) {
    side.free_places.give_back(slot);
    throw;
  }
  return slot;
}

void DeviceTables::remove_place(std::size_t drive, std::uint32_t slot) noexcept {
  const std::lock_guard lock(mutex_);
  sides_[drive].free_places.give_back(slot);
}

std::uint32_t DeviceTables::add_window(std::span<const DataWindow* const> views) {
  const std::lock_guard lock(mutex_);
  const std::uint32_t slot = free_windows_.take();
  if (slot == kNone) {
    return kNone;
  }
  try {
    for (std::size_t i = 0; i < sides_.size(); ++i) {
      DataWindow own = *views[i];
      own.map.runs = copy(sides_[i].runs, slot, own.map.runs, own.map.count);
      upload(teams_, sides_[i].windows + slot, &own, 1);
    }
  } catch (...) {
    free_windows_.give_back(slot);
    throw;
  }
  return slot;
}

void DeviceTables::remove_window(std::uint32_t slot) noexcept {
  const std::lock_guard lock(mutex_);
  free_windows_.give_back(slot);
}

}  // namespace tutti::runtime::nvme
