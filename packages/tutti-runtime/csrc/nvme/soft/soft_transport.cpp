// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>

#include <atomic>
#include <bit>
#include <cerrno>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "soft_device.hpp"
#include "tutti/runtime/detail/cuda_memory.hpp"
#include "tutti/runtime/detail/io_thread.hpp"
#include "tutti/runtime/error.hpp"
#include "tutti/runtime/nvme/backoff.hpp"
#include "tutti/runtime/nvme/registers.hpp"

namespace tutti::runtime::nvme {
namespace {

void check(const SoftSettings& settings) {
  const auto require = [](bool good, const char* key, std::uint64_t value, const char* rule) {
    if (!good) {
      throw InvalidArgument(std::string(key) + "=" + std::to_string(value) + " must be " + rule);
    }
  };
  require(
      settings.mdts_bytes == 0 || (std::has_single_bit(settings.mdts_bytes) && settings.mdts_bytes >= 4096),
      "mdts_bytes", settings.mdts_bytes, "0 or a power of two from 4096");
  require(settings.max_entries >= 2 && settings.max_entries <= 65536, "max_entries", settings.max_entries,
          "from 2 to 65536");
  require(settings.max_queues >= 1 && settings.max_queues <= 1024, "max_queues", settings.max_queues,
          "from 1 to 1024");
  require(std::has_single_bit(settings.doorbell_stride) && settings.doorbell_stride >= 4 &&
              settings.doorbell_stride <= 4096,
          "doorbell_stride", settings.doorbell_stride, "a power of two from 4 to 4096");
  require(settings.timeout_ms >= 500 && settings.timeout_ms <= 127500, "timeout_ms", settings.timeout_ms,
          "from 500 to 127500");
  require(settings.dma_granule % 4096 == 0, "dma_granule", settings.dma_granule, "a multiple of 4096");
  require(!settings.namespaces.empty() && settings.namespaces.size() <= 1024, "namespaces",
          settings.namespaces.size(), "1 to 1024 of them");
}

/// @throws SystemError
void* map_pages(std::uint64_t size) {
  void* const memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    throw SystemError(errno, "cannot have " + std::to_string(size) + " bytes for the device");
  }
  return memory;
}

/// Registers and doorbells, on pages of their own, which a GPU can be given.
class Bar {
 public:
  Bar(std::uint64_t bytes, int device)
      : size_((bytes + 4095) & ~std::uint64_t{4095}), memory_(map_pages(size_)) {
    if (device != kAnyDevice) {
      try {
        pin_ = std::make_unique<detail::HostPin>(static_cast<std::byte*>(memory_), size_, device);
      } catch (...) {
        ::munmap(memory_, size_);
        throw;
      }
    }
  }
  ~Bar() {
    pin_.reset();
    ::munmap(memory_, size_);
  }
  Bar(const Bar&) = delete;
  Bar& operator=(const Bar&) = delete;

  [[nodiscard]] std::span<std::uint32_t> words() const noexcept {
    return {static_cast<std::uint32_t*>(memory_), size_ / 4};
  }

 private:
  std::uint64_t size_;
  void* memory_;
  std::unique_ptr<detail::HostPin> pin_;
};

/// The controller and the lock that keeps it from touching memory while a window comes or goes. Shared with
/// memory and mappings, which may outlive the transport.
struct Shared {
  Shared(const SoftSettings& settings, std::shared_ptr<SoftControl> switches)
      : control(std::move(switches)),
        bar(kDoorbells + 2 * (settings.max_queues + 1) * settings.doorbell_stride, settings.device),
        device(settings, *control, bar.words()) {}

  const std::shared_ptr<SoftControl> control;
  Bar bar;
  std::mutex mutex;
  soft::Device device;
};

/// Undoes a mapping.
struct Unmap {
  std::shared_ptr<Shared> shared;
  std::vector<DmaRun> runs;
  void* memory;  ///< to be given back, or null
  std::uint64_t size;
  std::unique_ptr<detail::HostPin> pin;

  Unmap(std::shared_ptr<Shared> owner, std::vector<DmaRun> mapped, void* own, std::uint64_t bytes)
      : shared(std::move(owner)), runs(std::move(mapped)), memory(own), size(bytes) {}
  ~Unmap() {
    {
      const std::lock_guard lock(shared->mutex);
      shared->device.windows().remove(runs);
      shared->device.check_queues();
    }
    pin.reset();
    if (memory != nullptr) {
      ::munmap(memory, size);
    }
  }
  Unmap(const Unmap&) = delete;
  Unmap& operator=(const Unmap&) = delete;
};

class SoftTransportImpl final : public SoftTransport {
 public:
  SoftTransportImpl(const SoftSettings& settings, std::shared_ptr<SoftControl> control)
      : settings_(settings), shared_(std::make_shared<Shared>(settings, std::move(control))) {
    thread_ = detail::start_io_thread("tutti-softnvme", [this] { work(); });
    ready_.wait(false, std::memory_order_acquire);
  }
  ~SoftTransportImpl() override { stop_thread(); }

  std::string name() const override { return "soft:" + settings_.name; }

  std::uint32_t read32(std::uint32_t offset) override {
    return unplugged() ? kAllOnes : shared_->device.load(offset);
  }
  std::uint64_t read64(std::uint32_t offset) override {
    return read32(offset) | (std::uint64_t{read32(offset + 4)} << 32);
  }

  void write32(std::uint32_t offset, std::uint32_t value) override {
    if (unplugged()) {
      return;
    }
    if (offset == kCc && (value & kCcEnable) != 0 && (shared_->device.load(kCc) & kCcEnable) == 0 &&
        (shared_->device.load(kCsts) & kCstsReady) != 0) {
      shared_->control->violate("CC.EN was set before CSTS.RDY had fallen");
    }
    const bool admin_queue = offset >= kAqa && offset < kAcq + 8;
    if (admin_queue && (shared_->device.load(kCc) & kCcEnable) != 0) {
      shared_->control->violate("an admin queue's register was written while CC.EN is set");
    }
    if (offset >= kDoorbells && (shared_->device.load(kCsts) & kCstsReady) == 0) {
      shared_->control->violate("a doorbell was rung while the controller is not ready");
    }
    shared_->device.store(offset, value);
  }
  void write64(std::uint32_t offset, std::uint64_t value) override {
    write32(offset, static_cast<std::uint32_t>(value));
    write32(offset + 4, static_cast<std::uint32_t>(value >> 32));
  }

  std::uint32_t* doorbell(std::uint32_t offset) override {
    const std::span<std::uint32_t> words = shared_->bar.words();
    return offset / 4 < words.size() ? &words[offset / 4] : nullptr;
  }

  DmaMemory allocate(std::uint64_t size, MemoryKind kind) override {
    require(kind != MemoryKind::kDevice, "queues");
    size = (size + 4095) & ~std::uint64_t{4095};
    void* const memory = map_pages(size);
    auto* const address = static_cast<std::byte*>(memory);
    std::vector<DmaRun> runs = add(address, size, 0, false);
    const std::uint64_t iova = runs.front().iova;
    auto owner = std::make_shared<Unmap>(shared_, std::move(runs), memory, size);
    if (kind == MemoryKind::kPinnedHost && settings_.device != kAnyDevice) {
      owner->pin = std::make_unique<detail::HostPin>(address, size, settings_.device);
    }
    return {address, iova, size, std::move(owner)};
  }

  DmaMapping map(std::byte* address, std::uint64_t size, MemoryKind kind, int /*device*/) override {
    const bool on_device = kind == MemoryKind::kDevice;
    require(!on_device || settings_.device != kAnyDevice, "data");
    std::vector<DmaRun> runs = add(address, size, settings_.dma_granule, on_device);
    return {address, size, runs, std::make_shared<Unmap>(shared_, runs, nullptr, size)};
  }

  bool set_bus_master(bool on) noexcept override {
    const std::lock_guard lock(shared_->mutex);
    shared_->device.set_bus_master(on);
    return true;
  }

  TransportCaps caps() const override {
    if (settings_.device != kAnyDevice) {
      return {true, true, true, true, 4096, ""};
    }
    return {true, false, true, false, 4096, "soft: no device memory, and no GPU rings its doorbells"};
  }

  void drive_by_hand() override { stop_thread(); }
  void set_owner(const DmaMapping& window, std::uint32_t owner) override {
    const std::lock_guard lock(shared_->mutex);
    shared_->device.windows().set_owner(window.runs(), owner);
  }
  void guard_queue(std::uint16_t id, const SoftGuard& guard) override {
    const std::lock_guard lock(shared_->mutex);
    shared_->device.guard_queue(id, guard);
  }
  bool step() override {
    const std::lock_guard lock(shared_->mutex);
    return shared_->device.step();
  }

 private:
  static void require(bool good, const char* what) {
    if (!good) {
      throw InvalidArgument(std::string("kind='device' cannot be reached by a soft controller's ") + what +
                            ": its CPU thread moves bytes, by CUDA only where `device` is set");
    }
  }

  std::vector<DmaRun> add(std::byte* address, std::uint64_t size, std::uint64_t granule, bool on_device) {
    const std::lock_guard lock(shared_->mutex);
    return shared_->device.windows().add(address, size, granule, on_device);
  }

  [[nodiscard]] bool unplugged() const noexcept {
    return shared_->control->unplugged.load(std::memory_order_acquire) || shared_->device.gone();
  }

  void work() noexcept {
    try {
      shared_->device.warm_up();
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): it could on another thread; data commands tell
    }
    ready_.store(true, std::memory_order_release);
    ready_.notify_all();
    Backoff backoff;
    while (!stopping_.load(std::memory_order_acquire)) {
      if (step()) {
        backoff.reset();
      } else {
        backoff.pause();
      }
    }
  }

  void stop_thread() noexcept {
    stopping_.store(true, std::memory_order_release);
    if (thread_.joinable()) {
      thread_.join();
    }
  }

  const SoftSettings settings_;
  std::shared_ptr<Shared> shared_;
  std::atomic<bool> ready_{false};  ///< the thread has used the device once
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace

std::unique_ptr<SoftTransport> make_soft_transport(const SoftSettings& settings,
                                                   std::shared_ptr<SoftControl> control) {
  check(settings);
  return std::make_unique<SoftTransportImpl>(settings,
                                             control ? std::move(control) : std::make_shared<SoftControl>());
}

}  // namespace tutti::runtime::nvme
