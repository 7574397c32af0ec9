// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <memory>
#include <string>

#include "bindings.hpp"
#include "tutti/runtime/detail/cuda_event.hpp"
#include "tutti/runtime/detail/cuda_memory.hpp"
#include "tutti/runtime/detail/cuda_stream.hpp"
#include "tutti/runtime/shim/cuda.hpp"

namespace tutti::runtime::bindings {
namespace {

/// A Python object that a batch keeps alive. The thread that lets it go must not wait for the GIL: it only
/// puts it on a list.
struct Kept {
  PyObject* object;
  Kept* next;
};
std::atomic<Kept*> let_go{nullptr};

void put_on_list(void* pointer) noexcept {
  auto* const kept = static_cast<Kept*>(pointer);
  kept->next = let_go.load(std::memory_order_relaxed);
  while (!let_go.compare_exchange_weak(kept->next, kept, std::memory_order_release)) {
  }
}

std::shared_ptr<void> keep(const py::object& object) {
  if (object.is_none()) {
    return nullptr;
  }
  auto kept = std::make_unique<Kept>(object.ptr(), nullptr);
  Py_INCREF(kept->object);
  return {static_cast<void*>(kept.release()), put_on_list};
}

std::byte* to_pointer(std::uint64_t address) { return reinterpret_cast<std::byte*>(address); }

}  // namespace

void free_let_go() {
  if (let_go.load(std::memory_order_relaxed) == nullptr) {
    return;
  }
  for (Kept* kept = let_go.exchange(nullptr, std::memory_order_acquire); kept != nullptr;) {
    const std::unique_ptr<Kept> first(kept);
    kept = kept->next;
    Py_DECREF(first->object);
  }
}

void bind_cuda(py::module_& module) {
  using namespace py::literals;
  using Release = py::call_guard<py::gil_scoped_release>;
  py::class_<detail::HostPin>(module, "HostPin")
      .def(py::init([](std::uint64_t address, std::uint64_t size, int device) {
             return std::make_unique<detail::HostPin>(to_pointer(address), size, device);
           }),
           "address"_a, "size"_a, "device"_a, Release());
  py::class_<detail::CudaEventDependency, Dependency, std::shared_ptr<detail::CudaEventDependency>>(
      module, "CudaEvent")
      .def(py::init([](std::uint64_t event, const py::object& owner) {
             return std::make_shared<detail::CudaEventDependency>(event, keep(owner));
           }),
           "event"_a, "owner"_a);
  module.def("cuda_require", [] { static_cast<void>(shim::cuda()); }, Release());
  module.def("cuda_pci_bus_id", &detail::pci_bus_id, "device"_a, Release());
  module.def("numa_node", &detail::numa_node, "pci_bus_id"_a);
  module.def(
      "prefer_node",
      [](std::uint64_t address, std::uint64_t size, int node) {
        detail::prefer_node(to_pointer(address), size, node);
      },
      "address"_a, "size"_a, "node"_a);
  module.def(
      "cuda_device_pointer",
      [](std::uint64_t address, int device) { return detail::device_pointer(to_pointer(address), device); },
      "address"_a, "device"_a, Release());
  module.def(
      "stream_wait_word",
      [](std::uint64_t stream, std::uint64_t address, std::uint64_t value) {
        detail::stream_wait_word(stream, to_pointer(address), value);
      },
      "stream"_a, "address"_a, "value"_a, Release());
  module.def(
      "stream_write_word",
      [](std::uint64_t stream, std::uint64_t address, std::uint64_t value) {
        detail::stream_write_word(stream, to_pointer(address), value);
      },
      "stream"_a, "address"_a, "value"_a, Release());
}

}  // namespace tutti::runtime::bindings
