// SPDX-License-Identifier: Apache-2.0
#include "tutti/runtime/detail/make_memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tutti/runtime/detail/cuda_memory.hpp"
#include "tutti/runtime/error.hpp"
#include "tutti/runtime/io.hpp"

namespace tutti::runtime::detail {
namespace {

void require_aligned(std::uint64_t address, std::uint64_t size) {
  if (address == 0 || address % kMemoryAlignment != 0) {
    throw InvalidArgument("address=" + std::to_string(address) + " must be a multiple of 65536 and not 0");
  }
  if (size == 0 || size % kIoAlignment != 0 || size > UINT64_MAX - address) {
    throw InvalidArgument("size=" + std::to_string(size) +
                          " must be a multiple of 4096 and more than 0, and end inside the address space");
  }
}

bool is_mapped(std::uint64_t address, std::uint64_t size) {
  constexpr std::uint64_t step = std::uint64_t{1} << 30;
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> residency((std::min(step, size) + page - 1) / page);
  for (std::uint64_t done = 0; done < size; done += step) {
    void* part = reinterpret_cast<void*>(address + done);
    if (::mincore(part, std::min(step, size - done), residency.data()) != 0) {
      return false;
    }
  }
  return true;
}

void require_mapped(std::uint64_t address, std::uint64_t size) {
  if (!is_mapped(address, size)) {
    throw InvalidArgument("address=" + std::to_string(address) + ", size=" + std::to_string(size) +
                          ": part of this range is not mapped memory of the process");
  }
}

}  // namespace

std::unique_ptr<Memory> make_memory(std::uint64_t address, std::uint64_t size, MemoryKind kind, int device) {
  require_aligned(address, size);
  auto memory = std::make_unique<Memory>();
  memory->address = reinterpret_cast<std::byte*>(address);
  memory->size = size;
  memory->kind = kind;
  switch (kind) {
    case MemoryKind::kHost:
      if (device != kAnyDevice) {
        throw InvalidArgument("device=" + std::to_string(device) +
                              " belongs to kind='pinned_host' and kind='device'; host memory has none");
      }
      require_mapped(address, size);
      break;
    case MemoryKind::kPinnedHost:
      require_mapped(address, size);
      memory->device = device == kAnyDevice ? 0 : device;
      memory->pin = std::make_shared<HostPin>(memory->address, size, memory->device);
      break;
    case MemoryKind::kDevice:
      memory->device = require_device_memory(address, size, device);
      break;
  }
  return memory;
}

}  // namespace tutti::runtime::detail
