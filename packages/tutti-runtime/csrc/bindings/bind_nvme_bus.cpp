// SPDX-License-Identifier: Apache-2.0
// The bus of a controller, bare, for tests: registers, doorbells and memory, without the driver library.
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "bindings.hpp"
#include "tutti/runtime/nvme/core/ordered.hpp"
#include "tutti/runtime/nvme/qtest.hpp"
#include "tutti/runtime/nvme/transport.hpp"
#include "tutti/runtime/nvme/vfio.hpp"

namespace tutti::runtime::bindings {
namespace {

using namespace py::literals;
using nvme::DmaMapping;
using nvme::DmaMemory;
using nvme::Transport;

/// A transport and the doorbells that were asked for.
class Bus {
 public:
  explicit Bus(std::unique_ptr<Transport> transport) : transport_(std::move(transport)) {}

  [[nodiscard]] Transport& transport() const noexcept { return *transport_; }

  /// As a queue begins, before its first ring().
  void begin(std::uint32_t offset) { words_[offset] = transport_->doorbell(offset); }

  /// By a store where the bus has a word for it.
  void ring(std::uint32_t offset, std::uint32_t value) {
    const auto word = words_.find(offset);
    if (word != words_.end() && word->second != nullptr) {
      nvme::ring_doorbell(word->second, value);
    } else {
      transport_->write32(offset, value);
    }
  }

 private:
  std::unique_ptr<Transport> transport_;
  std::map<std::uint32_t, std::uint32_t*> words_;
};

std::unique_ptr<Bus> open_qtest_bus(const std::string& socket, const std::string& ram, std::uint32_t slot,
                                    bool relay, const std::string& peer, std::uint32_t peer_slot,
                                    int device) {
  return std::make_unique<Bus>(nvme::open_qtest({socket, ram, slot, relay, peer, peer_slot, device}));
}

std::unique_ptr<Bus> open_vfio_bus(const std::string& bdf, const std::string& root) {
  return std::make_unique<Bus>(nvme::open_vfio({bdf, root}));
}

DmaMapping map_for(Bus& bus, std::uint64_t address, std::uint64_t size, const std::string& kind) {
  const auto memory_kind = pick<MemoryKind>("kind", kind,
                                            {{"host", MemoryKind::kHost},
                                             {"pinned_host", MemoryKind::kPinnedHost},
                                             {"device", MemoryKind::kDevice}});
  return bus.transport().map(reinterpret_cast<std::byte*>(address), size, memory_kind, kAnyDevice);
}

py::list runs_of(const DmaMapping& mapping) {
  py::list runs;
  for (const auto& run : mapping.runs()) {
    runs.append(py::make_tuple(run.iova, run.size));
  }
  return runs;
}

py::dict caps_of(const Bus& bus) {
  const nvme::TransportCaps caps = bus.transport().caps();
  return py::dict("doorbell_stores"_a = caps.doorbell_stores, "gpu_doorbells"_a = caps.gpu_doorbells,
                  "any_memory"_a = caps.any_memory, "device_memory"_a = caps.device_memory,
                  "page_bytes"_a = caps.page_bytes, "limits"_a = caps.limits);
}

}  // namespace

void bind_nvme_bus(py::module_& module) {
  using Release = py::call_guard<py::gil_scoped_release>;
  py::class_<DmaMemory>(module, "NvmeMemory", py::buffer_protocol())
      .def_property_readonly("iova", &DmaMemory::iova)
      .def_buffer([](DmaMemory& memory) {
        return py::buffer_info(reinterpret_cast<std::uint8_t*>(memory.address()),
                               static_cast<py::ssize_t>(memory.size()));
      });
  py::class_<DmaMapping>(module, "NvmeMapping").def_property_readonly("runs", &runs_of);
  py::class_<Bus>(module, "NvmeBus")
      .def_property_readonly("name", [](const Bus& bus) { return bus.transport().name(); })
      .def("caps", &caps_of)
      .def(
          "read32", [](Bus& bus, std::uint32_t offset) { return bus.transport().read32(offset); }, Release())
      .def(
          "read64", [](Bus& bus, std::uint32_t offset) { return bus.transport().read64(offset); }, Release())
      .def(
          "write32",
          [](Bus& bus, std::uint32_t offset, std::uint32_t value) { bus.transport().write32(offset, value); },
          Release())
      .def(
          "write64",
          [](Bus& bus, std::uint32_t offset, std::uint64_t value) { bus.transport().write64(offset, value); },
          Release())
      .def(
          "set_bus_master", [](Bus& bus, bool on) { return bus.transport().set_bus_master(on); }, Release())
      .def("begin", &Bus::begin, Release())
      .def("ring", &Bus::ring, Release())
      .def(
          "allocate",
          [](Bus& bus, std::uint64_t size, bool pinned) {
            return bus.transport().allocate(size, pinned ? MemoryKind::kPinnedHost : MemoryKind::kHost);
          },
          "size"_a, "pinned"_a = false, py::keep_alive<0, 1>())
      .def("map", &map_for, "address"_a, "size"_a, "kind"_a = "host", py::keep_alive<0, 1>());
  module.def("open_qtest_bus", &open_qtest_bus, "socket"_a, "ram"_a, "slot"_a, "relay"_a = false,
             "peer"_a = "", "peer_slot"_a = 0, "device"_a = kAnyDevice);
  module.def("open_vfio_bus", &open_vfio_bus, "bdf"_a, "root"_a = "/");
}

}  // namespace tutti::runtime::bindings
