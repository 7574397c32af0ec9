// SPDX-License-Identifier: Apache-2.0
#include "tutti/runtime/detail/cuda_memory.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <vector>

#include "tutti/runtime/data_path.hpp"
#include "tutti/runtime/error.hpp"

namespace tutti::runtime::detail {
namespace {

// Zero for memory that CUDA does not know: that is an error code, CUDA_ERROR_INVALID_VALUE, to the driver.
unsigned memory_type(std::uint64_t address) {
  unsigned type = 0;
  const shim::CuResult result =
      shim::cuda().pointer_get_attribute(&type, shim::kCuAttributeMemoryType, address);
  return result == shim::kCuSuccess ? type : 0;
}

// The device whose memory this is, -1 for none.
int owner_of(std::uint64_t address) {
  int owner = -1;
  if (memory_type(address) == shim::kCuMemoryTypeDevice) {
    shim::cuda().pointer_get_attribute(&owner, shim::kCuAttributeDeviceOrdinal, address);
  }
  return owner;
}

std::uint64_t last_of(std::uint64_t address, std::uint64_t size) { return address + size - 1; }

}  // namespace

HostPin::HostPin(std::byte* address, std::uint64_t size, int device) : context_(device), address_(address) {
  const auto first = reinterpret_cast<std::uint64_t>(address);
  const shim::ScopedContext current(context_.get());
  if (memory_type(first) == shim::kCuMemoryTypeHost &&
      memory_type(last_of(first, size)) == shim::kCuMemoryTypeHost) {
    return;
  }
  shim::check("cuMemHostRegister",
              shim::cuda().mem_host_register(address, size,
                                             shim::kCuHostRegisterPortable | shim::kCuHostRegisterDeviceMap));
  ours_ = true;
}

HostPin::~HostPin() {
  if (!ours_ || shim::cuda().context_push(context_.get()) != shim::kCuSuccess) {
    return;  // a driver that is going away has let go of the memory itself
  }
  shim::cuda().mem_host_unregister(address_);
  shim::CuContext mine = nullptr;
  shim::cuda().context_pop(&mine);
}

int require_device_memory(std::uint64_t address, std::uint64_t size, int device) {
  const int first = owner_of(address);
  if (first < 0 || owner_of(last_of(address, size)) != first || (device != kAnyDevice && device != first)) {
    throw InvalidArgument(
        "address=" + std::to_string(address) + ", size=" + std::to_string(size) +
        ": part of this range is not memory of " +
        (device == kAnyDevice ? "one CUDA device" : "CUDA device " + std::to_string(device)));
  }
  return first;
}

std::uint64_t device_pointer(std::byte* address, int device) {
  const shim::PrimaryContext context(device);
  const shim::ScopedContext current(context.get());
  shim::CuDevicePtr pointer = 0;
  shim::check("cuMemHostGetDevicePointer", shim::cuda().mem_host_get_device_pointer(&pointer, address, 0));
  return pointer;
}

std::string pci_bus_id(int device) {
  const shim::CuDevice found = shim::find_device(device);
  std::array<char, 32> text{};
  shim::check("cuDeviceGetPCIBusId", shim::cuda().device_get_pci_bus_id(text.data(), text.size(), found));
  std::string id(text.data());
  std::transform(id.begin(), id.end(), id.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  return id;
}

int numa_node(const std::string& pci_bus_id) {
  std::ifstream file("/sys/bus/pci/devices/" + pci_bus_id + "/numa_node");
  int node = -1;
  return file >> node ? node : -1;
}

void prefer_node(std::byte* address, std::uint64_t size, int node) {
  constexpr int preferred = 1;  // MPOL_PREFERRED of mbind(2); glibc has no declaration of it
  constexpr std::size_t bits = 8 * sizeof(unsigned long);
  const auto place = static_cast<std::size_t>(node);
  std::vector<unsigned long> mask(place / bits + 1, 0);
  mask[place / bits] = 1UL << (place % bits);
  // The kernel reads one bit less than it is told of.
  if (::syscall(SYS_mbind, address, size, preferred, mask.data(), mask.size() * bits + 1, 0) != 0) {
    const int error = errno;
    throw SystemError(error, "mbind to NUMA node " + std::to_string(node) + ": " + std::strerror(error));
  }
}

}  // namespace tutti::runtime::detail
