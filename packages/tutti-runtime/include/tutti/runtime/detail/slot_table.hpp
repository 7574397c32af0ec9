// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace tutti::runtime::detail {

enum class HandleKind : std::uint64_t { kTarget = 1, kMemory = 2, kBatch = 3 };

/// Slots addressed by opaque 64-bit handles: kind (2 bits), runtime (18), generation (24), slot (20). A
/// handle is good for one lifetime of one slot: a slot whose generations are used up is retired, never
/// reused. Not thread-safe; the owner locks.
template <typename T, std::uint32_t kGenerations = (1U << 24) - 1>
class SlotTable {
 public:
  SlotTable(HandleKind kind, std::uint32_t runtime_id)
      : prefix_((static_cast<std::uint64_t>(kind) << 62) | (std::uint64_t{runtime_id} << 44)) {}

  /// An empty table of another kind for the same runtime.
  template <typename Other>
  [[nodiscard]] SlotTable<Other> sibling(HandleKind kind) const {
    return SlotTable<Other>(kind, static_cast<std::uint32_t>((prefix_ >> 44) & kRuntimeMask));
  }

  /// Empty when all 2^20 slots are taken; `value` is then still the caller's.
  [[nodiscard]] std::optional<std::uint64_t> insert(T&& value) {
    if (free_.empty()) {
      if (slots_.size() > kSlotMask) {
        return std::nullopt;
      }
      slots_.emplace_back();
      free_.reserve(slots_.capacity());  // so that erase() cannot fail
      free_.push_back(static_cast<std::uint32_t>(slots_.size() - 1));
    }
    const std::uint32_t index = free_.back();
    free_.pop_back();
    slots_[index].value.emplace(std::move(value));
    ++size_;
    return prefix_ | (std::uint64_t{slots_[index].generation} << 20) | index;
  }

  /// Null for a stale, foreign or made-up handle. The pointer is good until the next insert or erase.
  [[nodiscard]] T* find(std::uint64_t handle) noexcept {
    const std::uint64_t index = handle & kSlotMask;
    if ((handle & kPrefixMask) != prefix_ || index >= slots_.size()) {
      return nullptr;
    }
    Slot& slot = slots_[index];
    if (!slot.value || slot.generation != ((handle >> 20) & kGenerationMask)) {
      return nullptr;
    }
    return &*slot.value;
  }

  void erase(std::uint64_t handle) noexcept {
    if (find(handle) == nullptr) {
      return;
    }
    const auto index = static_cast<std::uint32_t>(handle & kSlotMask);
    Slot& slot = slots_[index];
    slot.value.reset();
    --size_;
    if (slot.generation < kGenerations) {
      ++slot.generation;
      free_.push_back(index);
    }
  }

  void clear() noexcept {
    slots_.clear();
    free_.clear();
    size_ = 0;
  }

  [[nodiscard]] std::size_t size() const noexcept { return size_; }

 private:
  static constexpr std::uint64_t kSlotMask = (std::uint64_t{1} << 20) - 1;
  static constexpr std::uint64_t kRuntimeMask = (std::uint64_t{1} << 18) - 1;
  static constexpr std::uint64_t kGenerationMask = (std::uint64_t{1} << 24) - 1;
  static_assert(kGenerations <= kGenerationMask);
  static constexpr std::uint64_t kPrefixMask = ~((std::uint64_t{1} << 44) - 1);

  struct Slot {
    std::optional<T> value;
    std::uint32_t generation = 1;
  };

  std::uint64_t prefix_;
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_;
  std::size_t size_ = 0;
};

}  // namespace tutti::runtime::detail
