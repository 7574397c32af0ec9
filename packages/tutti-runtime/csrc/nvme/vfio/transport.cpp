// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "device.hpp"
#include "sysfs.hpp"
#include "tutti/runtime/error.hpp"
#include "tutti/runtime/nvme/core/ordered.hpp"
#include "tutti/runtime/nvme/registers.hpp"
#include "tutti/runtime/nvme/vfio.hpp"

namespace tutti::runtime::nvme {
namespace {

std::uint64_t page_bytes() { return static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)); }

class VfioTransport final : public Transport {
 public:
  explicit VfioTransport(const VfioOptions& options)
      : device_(vfio::Group::of(options.root, vfio::group_of(options.root, options.bdf)), options.bdf) {}

  std::string name() const override { return device_.bdf(); }

  std::uint32_t read32(std::uint32_t offset) override { return *word(offset); }

  // Two halves, the lower first: a controller may take 64-bit registers only so.
  std::uint64_t read64(std::uint32_t offset) override {
    const std::uint64_t low = read32(offset);
    return low | std::uint64_t{read32(offset + 4)} << 32U;
  }

  void write32(std::uint32_t offset, std::uint32_t value) override {
    // What the device will fetch has to be in memory before it is told.
    ring_doorbell(const_cast<std::uint32_t*>(word(offset)), value);
  }

  void write64(std::uint32_t offset, std::uint64_t value) override {
    write32(offset, static_cast<std::uint32_t>(value));
    write32(offset + 4, static_cast<std::uint32_t>(value >> 32U));
  }

  std::uint32_t* doorbell(std::uint32_t offset) override {
    return offset >= kDoorbells && offset + 4 <= device_.size()
               ? reinterpret_cast<std::uint32_t*>(device_.registers() + offset)
               : nullptr;
  }

  DmaMemory allocate(std::uint64_t size, MemoryKind kind) override {
    refuse_device(kind);
    size = (size + page_bytes() - 1) / page_bytes() * page_bytes();
    void* made =
        ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (made == MAP_FAILED) {
      throw SystemError(errno, "cannot allocate " + std::to_string(size) + " bytes: " + std::strerror(errno));
    }
    auto memory = std::shared_ptr<void>(made, [size](void* address) { ::munmap(address, size); });
    auto mapping = map(static_cast<std::byte*>(made), size, kind, kAnyDevice);
    const std::uint64_t iova = mapping.runs().front().iova;
    // The mapping goes before the memory: members are destroyed in the reverse order.
    auto owner =
        std::make_shared<std::pair<std::shared_ptr<void>, DmaMapping>>(std::move(memory), std::move(mapping));
    return {static_cast<std::byte*>(made), iova, size, std::move(owner)};
  }

  DmaMapping map(std::byte* address, std::uint64_t size, MemoryKind kind, int /*device*/) override {
    refuse_device(kind);
    if (reinterpret_cast<std::uint64_t>(address) % page_bytes() != 0 || size % page_bytes() != 0 ||
        size == 0) {
      throw InvalidArgument("address and size=" + std::to_string(size) + " must be whole pages of " +
                            std::to_string(page_bytes()) + " bytes");
    }
    const std::uint64_t iova = device_.group().map(address, size);
    auto owner = std::shared_ptr<void>(address, [group = device_.shared_group(), iova, address, size](void*) {
      group->unmap(iova, address, size);
    });
    return {address, size, {{iova, size}}, std::move(owner)};
  }

  bool set_bus_master(bool on) noexcept override { return device_.set_bus_master(on); }

  std::string describe_gone() const override {
    return device_.is_gone()
               ? "its registers cannot be reached any more: make the runtime anew once the device "
                 "is back"
               : Transport::describe_gone();
  }

  TransportCaps caps() const override {
    TransportCaps caps;
    caps.doorbell_stores = true;
    caps.any_memory = true;
    caps.page_bytes = page_bytes();
    caps.limits =
        "memory of a GPU: vfio cannot pin it, and nothing known in kernels up to 7.3 exports it to vfio";
    return caps;
  }

 private:
  static void refuse_device(MemoryKind kind) {
    if (kind == MemoryKind::kDevice) {
      throw InvalidArgument("vfio cannot map memory of a GPU: use pinned host memory (docs/gpu-direct.md)");
    }
  }

  [[nodiscard]] volatile std::uint32_t* word(std::uint32_t offset) const {
    return reinterpret_cast<volatile std::uint32_t*>(device_.registers() + offset);
  }

  vfio::Device device_;
};

}  // namespace

std::unique_ptr<Transport> open_vfio(const VfioOptions& options) {
  return std::make_unique<VfioTransport>(options);
}

}  // namespace tutti::runtime::nvme
