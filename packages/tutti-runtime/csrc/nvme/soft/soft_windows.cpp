// SPDX-License-Identifier: Apache-2.0
#include "soft_windows.hpp"

#include <algorithm>
#include <numeric>

namespace tutti::runtime::nvme::soft {
namespace {

constexpr std::uint64_t kGap = std::uint64_t{1} << 20;

}  // namespace

std::uint64_t Windows::place(std::byte* address, std::uint64_t size, bool on_device) {
  const std::uint64_t iova = next_;
  next_ += (size + kGap + 0xffff) & ~std::uint64_t{0xffff};
  windows_.emplace(iova, Window{address, size, on_device});
  return iova;
}

std::vector<DmaRun> Windows::add(std::byte* address, std::uint64_t size, std::uint64_t granule,
                                 bool on_device) {
  if (granule == 0) {
    return {{place(address, size, on_device), size}};
  }
  const std::uint64_t count = (size + granule - 1) / granule;
  std::vector<std::uint64_t> order(count);
  std::iota(order.begin(), order.end(), std::uint64_t{0});
  std::shuffle(order.begin(), order.end(), random_);
  std::vector<DmaRun> runs(count);
  for (const std::uint64_t i : order) {
    const std::uint64_t part = std::min(granule, size - i * granule);
    runs[i] = {place(address + i * granule, part, on_device), part};
  }
  return runs;
}

void Windows::remove(const std::vector<DmaRun>& runs) {
  for (const DmaRun& run : runs) {
    windows_.erase(run.iova);
  }
  last_ = {nullptr, 0};
}

void Windows::set_owner(const std::vector<DmaRun>& runs, std::uint32_t owner) noexcept {
  for (const DmaRun& run : runs) {
    const auto window = windows_.find(run.iova);
    if (window != windows_.end()) {
      window->second.owner = owner;
    }
  }
  last_ = {nullptr, 0};
}

std::byte* Windows::find(std::uint64_t iova, std::uint64_t size) {
  if (iova - last_begin_ >= last_.size || last_.address == nullptr) {
    auto window = windows_.upper_bound(iova);
    if (window == windows_.begin()) {
      return nullptr;
    }
    --window;
    if (iova - window->first >= window->second.size) {
      return nullptr;
    }
    last_begin_ = window->first;
    last_ = window->second;
  }
  if (!is_visible(last_)) {
    return nullptr;
  }
  const std::uint64_t inside = iova - last_begin_;
  return size <= last_.size - inside ? last_.address + inside : nullptr;
}

}  // namespace tutti::runtime::nvme::soft
