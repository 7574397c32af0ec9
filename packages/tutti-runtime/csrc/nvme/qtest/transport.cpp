// SPDX-License-Identifier: Apache-2.0
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
#include <utility>

#include "machine.hpp"
#include "relay.hpp"
#include "tutti/runtime/detail/cuda_memory.hpp"
#include "tutti/runtime/error.hpp"
#include "tutti/runtime/nvme/qtest.hpp"
#include "tutti/runtime/nvme/registers.hpp"

namespace tutti::runtime::nvme {
namespace {

constexpr std::uint64_t kPage = 4096;
// Where BARs are put: in the hole that a q35 machine leaves between its memory and 4 GiB.
constexpr std::uint64_t kPeerBase = 0xc0000000;
constexpr std::uint64_t kPeerMost = 0x10000000;
constexpr std::uint64_t kBarBase = 0xe0000000;
constexpr std::uint64_t kBarSpacing = 0x100000;
// PCI Local Bus Specification: header of a function.
constexpr std::uint32_t kConfigCommand = 0x04;
constexpr std::uint32_t kConfigClass = 0x08;
constexpr std::uint32_t kConfigBar0 = 0x10;
constexpr std::uint32_t kConfigBar2 = 0x18;
constexpr std::uint32_t kMemory = 2;
constexpr std::uint32_t kMemoryAndMaster = 6;
constexpr std::uint32_t kNvmeClass = 0x010802;

std::uint64_t rounded(std::uint64_t size) { return (size + kPage - 1) / kPage * kPage; }

class QtestTransport final : public Transport {
 public:
  explicit QtestTransport(const QtestOptions& options)
      : machine_(qtest::Machine::of(options.socket, options.ram)),
        slot_(options.slot),
        device_(options.device),
        taken_(*machine_, slot_) {
    if (options.relay) {  // first: what may be refused leaves the controller as it was
      relay_.emplace([this](std::uint32_t offset, std::uint32_t value) { write_register(offset, value); },
                     device_);
    }
    place_controller();
    if (!options.peer.empty()) {
      place_peer(options.peer, options.peer_slot);
    }
  }

  ~QtestTransport() override {
    relay_.reset();
    // No transfer can begin any more, whatever the controller still believes.
    client().write_config(slot_, kConfigCommand, 0);
  }

  std::string name() const override {
    char text[32];
    std::snprintf(text, sizeof(text), "qtest:0x%x", slot_ << 3U);
    return text;
  }

  std::uint32_t read32(std::uint32_t offset) override { return client().read32(bar_ + offset); }
  std::uint64_t read64(std::uint32_t offset) override { return client().read64(bar_ + offset); }
  void write32(std::uint32_t offset, std::uint32_t value) override {
    flush();
    write_register(offset, value);
  }
  void write64(std::uint32_t offset, std::uint64_t value) override {
    flush();
    client().write64(bar_ + offset, value);
  }

  std::uint32_t* doorbell(std::uint32_t offset) override { return relay_ ? relay_->begin(offset) : nullptr; }

  DmaMemory allocate(std::uint64_t size, MemoryKind kind) override {
    refuse_device(kind);
    size = rounded(size);
    auto owner = std::make_shared<Place>(machine_, size);
    std::byte* const address = machine_->ram().address() + owner->offset;
    std::memset(address, 0, size);
    if (kind == MemoryKind::kPinnedHost && device_ != kAnyDevice) {
      owner->pin.emplace(address, size, device_);
    }
    const std::uint64_t offset = owner->offset;
    return {address, offset, size, std::move(owner)};
  }

  DmaMapping map(std::byte* address, std::uint64_t size, MemoryKind kind, int /*device*/) override {
    refuse_device(kind);
    std::uint64_t iova = 0;
    if (const auto offset = machine_->ram().offset_of(address, size)) {
      if (*offset < machine_->windows_begin()) {
        throw InvalidArgument("offset " + std::to_string(*offset) +
                              " of the machine's memory is kept for queues; "
                              "windows begin at its half, " +
                              std::to_string(machine_->windows_begin()));
      }
      iova = *offset;
    } else if (const auto there = peer_ ? peer_->offset_of(address, size) : std::nullopt) {
      iova = kPeerBase + *there;
    } else {
      throw InvalidArgument(
          "QEMU's devices reach only the file behind the machine's memory (and the peer's): the " +
          std::to_string(size) + " bytes must be one shared mapping of it");
    }
    return {address, size, {{iova, size}}, machine_};
  }

  bool set_bus_master(bool on) noexcept override {
    client().write_config(slot_, kConfigCommand, on ? kMemoryAndMaster : kMemory);
    return true;
  }

  TransportCaps caps() const override {
    TransportCaps caps;
    caps.doorbell_stores = relay_.has_value();
    caps.gpu_doorbells = device_ != kAnyDevice;
    caps.page_bytes = kPage;
    caps.limits = "QEMU without a guest: windows are mappings of the second half of the machine's memory";
    return caps;
  }

 private:
  /// A slot for as long as this lives.
  class Taken {
   public:
    Taken(qtest::Machine& machine, std::uint32_t slot) : machine_(machine), slot_(slot) {
      machine.take_slot(slot);
    }
    ~Taken() { machine_.leave_slot(slot_); }
    Taken(const Taken&) = delete;
    Taken& operator=(const Taken&) = delete;

   private:
    qtest::Machine& machine_;
    std::uint32_t slot_;
  };

  /// Some of the machine's memory for as long as this lives, which a mapping may longer than the transport.
  struct Place {
    Place(std::shared_ptr<qtest::Machine> owner, std::uint64_t bytes)
        : machine(std::move(owner)), size(bytes), offset(machine->memory().take(bytes, kPage)) {}
    ~Place() {
      pin.reset();  // others may pin it once it is free
      machine->memory().add(offset, size);
    }
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;

    std::shared_ptr<qtest::Machine> machine;
    std::uint64_t size;
    std::uint64_t offset;
    std::optional<detail::HostPin> pin;
  };

  [[nodiscard]] qtest::Client& client() const noexcept { return machine_->client(); }

  void flush() {
    if (relay_) {
      relay_->flush();
    }
  }

  void write_register(std::uint32_t offset, std::uint32_t value) { client().write32(bar_ + offset, value); }

  static void refuse_device(MemoryKind kind) {
    if (kind == MemoryKind::kDevice) {
      throw InvalidArgument("QEMU's devices cannot reach memory of a GPU: use memory of the machine's file");
    }
  }

  void place_controller() {
    const std::uint32_t found = client().read_config(slot_, kConfigClass) >> 8U;
    if (found != kNvmeClass) {
      throw SystemError(ENODEV, "slot " + std::to_string(slot_) + " of the machine holds no NVMe controller");
    }
    bar_ = kBarBase + slot_ * kBarSpacing;
    client().write_config(slot_, kConfigBar0, static_cast<std::uint32_t>(bar_));
    client().write_config(slot_, kConfigBar0 + 4, 0);
    client().write_config(slot_, kConfigCommand, kMemoryAndMaster);
  }

  void place_peer(const std::string& path, std::uint32_t slot) {
    peer_.emplace(path);
    if (peer_->size() > kPeerMost) {
      throw InvalidArgument("peer='" + path + "' has " + std::to_string(peer_->size()) +
                            " bytes; there is room on the bus for 256 MiB");
    }
    client().write_config(slot, kConfigBar2, static_cast<std::uint32_t>(kPeerBase));
    client().write_config(slot, kConfigBar2 + 4, 0);
    client().write_config(slot, kConfigCommand, kMemoryAndMaster);
  }

  std::shared_ptr<qtest::Machine> machine_;
  const std::uint32_t slot_;
  const int device_;
  const Taken taken_;
  std::uint64_t bar_ = 0;
  std::optional<qtest::SharedFile> peer_;
  std::optional<qtest::DoorbellRelay> relay_;
};

void check_slot(const char* key, std::uint32_t slot) {
  if (slot < 1 || slot > 31) {
    throw InvalidArgument(std::string(key) + "=" + std::to_string(slot) + " must be between 1 and 31");
  }
}

}  // namespace

std::unique_ptr<Transport> open_qtest(const QtestOptions& options) {
  check_slot("slot", options.slot);
  if (!options.peer.empty()) {
    check_slot("peer_slot", options.peer_slot);
  }
  if (options.device != kAnyDevice && !options.relay) {
    throw InvalidArgument("device=" + std::to_string(options.device) +
                          " needs relay=True: a GPU rings doorbells by stores");
  }
  return std::make_unique<QtestTransport>(options);
}

}  // namespace tutti::runtime::nvme
