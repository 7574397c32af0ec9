// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tutti/runtime/data_path.hpp"

namespace tutti::runtime::nvme {

/// A range of bus addresses.
struct DmaRun {
  std::uint64_t iova = 0;
  std::uint64_t size = 0;
};

/// Memory of this process that the device can reach. Move-only; the device must not use it once this is gone.
class DmaMapping {
 public:
  DmaMapping() = default;
  /// `runs` in the order of the addresses, together `size` bytes; `owner` undoes the mapping when it dies.
  DmaMapping(std::byte* address, std::uint64_t size, std::vector<DmaRun> runs, std::shared_ptr<void> owner)
      : address_(address), size_(size), runs_(std::move(runs)), owner_(std::move(owner)) {}
  DmaMapping(DmaMapping&&) = default;
  DmaMapping& operator=(DmaMapping&&) = default;
  DmaMapping(const DmaMapping&) = delete;
  DmaMapping& operator=(const DmaMapping&) = delete;

  [[nodiscard]] std::byte* address() const noexcept { return address_; }
  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }
  /// Where the memory is for the device: one run behind an IOMMU, maybe more without.
  [[nodiscard]] const std::vector<DmaRun>& runs() const noexcept { return runs_; }

 private:
  std::byte* address_ = nullptr;
  std::uint64_t size_ = 0;
  std::vector<DmaRun> runs_;
  std::shared_ptr<void> owner_;
};

/// Memory that a transport has made for queues and lists: page-aligned, zeroed, in one run. Move-only.
class DmaMemory {
 public:
  DmaMemory() = default;
  /// `owner` gives the memory back when it dies.
  DmaMemory(std::byte* address, std::uint64_t iova, std::uint64_t size, std::shared_ptr<void> owner)
      : address_(address), iova_(iova), size_(size), owner_(std::move(owner)) {}
  DmaMemory(DmaMemory&&) = default;
  DmaMemory& operator=(DmaMemory&&) = default;
  DmaMemory(const DmaMemory&) = delete;
  DmaMemory& operator=(const DmaMemory&) = delete;

  [[nodiscard]] std::byte* address() const noexcept { return address_; }
  [[nodiscard]] std::uint64_t iova() const noexcept { return iova_; }
  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }

 private:
  std::byte* address_ = nullptr;
  std::uint64_t iova_ = 0;
  std::uint64_t size_ = 0;
  std::shared_ptr<void> owner_;
};

/// Blocks of a namespace.
struct LbaRange {
  std::uint32_t nsid = 0;
  std::uint64_t first = 0;
  std::uint64_t blocks = 0;
};

struct TransportCaps {
  bool doorbell_stores = false;     ///< doorbell() gives words that plain CPU stores ring
  bool gpu_doorbells = false;       ///< a GPU can be given those words
  bool any_memory = false;          ///< map() takes any memory of the process, not only some
  bool device_memory = false;       ///< map() takes MemoryKind::kDevice
  std::uint64_t page_bytes = 4096;  ///< alignment of what map() takes
  std::string limits;               ///< in words: what it cannot do and why; empty when nothing is missing
  // NOLINTBEGIN(readability-redundant-member-init): GCC warns of aggregates that leave them out otherwise
  std::string broker{};            ///< socket of the process that owns the controller; empty: this one does
  std::vector<LbaRange> ranges{};  ///< the only blocks that this driver may touch; empty: all
  // NOLINTEND(readability-redundant-member-init)
};

/// What a controller's driver needs of the bus: registers of BAR0 and memory for DMA. One per controller.
/// Every function may be called from any thread, also while others run.
class Transport {
 public:
  Transport() = default;
  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  /// "soft:disk0", "0000:01:00.0", "qtest:0x20"
  [[nodiscard]] virtual std::string name() const = 0;

  /// A register at its offset in BAR0. All bits are 1 once the device is gone, as PCIe has it. Writes of a
  /// doorbell order like ring_doorbell().
  [[nodiscard]] virtual std::uint32_t read32(std::uint32_t offset) = 0;
  [[nodiscard]] virtual std::uint64_t read64(std::uint32_t offset) = 0;
  virtual void write32(std::uint32_t offset, std::uint32_t value) = 0;
  virtual void write64(std::uint32_t offset, std::uint64_t value) = 0;

  /// The word that rings the doorbell at `offset` when it is stored to; null where only write32() rings. Good
  /// as long as the transport; asked for anew whenever a queue begins, before its first ring.
  [[nodiscard]] virtual std::uint32_t* doorbell(std::uint32_t offset) = 0;

  /// Makes memory for queues and lists; `size` is rounded up to whole pages.
  /// @throws InvalidArgument for a kind it does not have; SystemError
  [[nodiscard]] virtual DmaMemory allocate(std::uint64_t size, MemoryKind kind) = 0;

  /// Lets the device reach memory of the caller, which stays mapped in the process until the mapping is gone.
  /// `device` is the CUDA device of MemoryKind::kDevice.
  /// @throws InvalidArgument with the reason where the bus cannot; SystemError
  [[nodiscard]] virtual DmaMapping map(std::byte* address, std::uint64_t size, MemoryKind kind,
                                       int device) = 0;

  /// Whether the device may reach memory at all (Bus Master Enable of the PCI command register). A device
  /// that answers nothing any more is cut off before its memory is used for something else.
  /// @returns false where the bus has no such switch; nothing is known of the device then.
  virtual bool set_bus_master(bool /*on*/) noexcept { return false; }

  /// Identifiers of the I/O queues that this driver may make; empty: all of the controller's.
  [[nodiscard]] virtual std::vector<std::uint16_t> queue_ids() const { return {}; }

  /// What it means that registers read all ones, for messages.
  [[nodiscard]] virtual std::string describe_gone() const {
    return "the device is gone (its registers read all ones)";
  }

  [[nodiscard]] virtual TransportCaps caps() const = 0;
};

}  // namespace tutti::runtime::nvme
