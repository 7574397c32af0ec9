// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "bindings.hpp"

namespace tutti::runtime::bindings {
namespace {

std::uint64_t register_memory(StorageRuntime& runtime, std::uint64_t address, std::uint64_t size,
                              const std::string& kind, int device) {
  const auto chosen = pick<MemoryKind>("kind", kind,
                                       {{"host", MemoryKind::kHost},
                                        {"pinned_host", MemoryKind::kPinnedHost},
                                        {"device", MemoryKind::kDevice}});
  py::gil_scoped_release release;
  return runtime.register_memory(address, size, chosen, device);
}

void unregister_memory(StorageRuntime& runtime, const py::object& memory) {
  const std::uint64_t handle = to_handle(memory);
  py::gil_scoped_release release;
  runtime.unregister_memory(handle);
}

}  // namespace

void bind_memory(Class& runtime) {
  using namespace py::literals;
  runtime.def("register_memory", &register_memory, "address"_a, "size"_a, "kind"_a = "host",
              "device"_a = kAnyDevice);
  runtime.def("unregister_memory", &unregister_memory);
  runtime.def(
      "word_address",
      [](StorageRuntime& r, const py::object& memory, std::uint64_t offset, std::uint64_t bytes) {
        return r.word_address(to_handle(memory), offset, bytes);
      },
      "memory"_a, "offset"_a, "bytes"_a);
}

}  // namespace tutti::runtime::bindings
