// SPDX-License-Identifier: Apache-2.0
#include "mapped_file.hpp"

#include <sys/mman.h>
#include <sys/sysmacros.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>

#include "tutti/runtime/error.hpp"

namespace tutti::runtime::nvme {
namespace {

std::optional<MappedFile> parse(const std::string& line) {
  MappedFile found;
  char rights[5] = {};
  unsigned int major = 0;
  unsigned int minor = 0;
  std::uint64_t inode = 0;
  // NOLINTNEXTLINE(bugprone-unchecked-string-to-number-conversion): the kernel wrote the numbers
  if (std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64 " %4s %" SCNx64 " %x:%x %" SCNu64, &found.begin,
                  &found.end, rights, &found.offset, &major, &minor, &inode) != 7) {
    return std::nullopt;
  }
  found.device = makedev(major, minor);
  found.inode = inode;
  found.shared = rights[3] == 's';
  return found;
}

}  // namespace

SharedMapping::SharedMapping(int fd, std::uint64_t offset, std::uint64_t size, bool writable) : size_(size) {
  void* const memory = ::mmap(nullptr, size, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd,
                              static_cast<off_t>(offset));
  if (memory == MAP_FAILED) {
    const int error = errno;
    throw SystemError(
        error, "cannot map " + std::to_string(size) + " bytes of shared memory: " + std::strerror(error));
  }
  address_ = static_cast<std::byte*>(memory);
}
SharedMapping::~SharedMapping() {
  if (address_ != nullptr) {
    ::munmap(address_, size_);
  }
}
SharedMapping::SharedMapping(SharedMapping&& other) noexcept
    : address_(std::exchange(other.address_, nullptr)), size_(std::exchange(other.size_, 0)) {}
SharedMapping& SharedMapping::operator=(SharedMapping&& other) noexcept {
  std::swap(address_, other.address_);
  std::swap(size_, other.size_);
  return *this;
}

std::optional<MappedFile> find_mapped_file(std::uint64_t begin, std::uint64_t end) {
  std::ifstream maps("/proc/self/maps");
  std::optional<MappedFile> found;
  for (std::string line; std::getline(maps, line);) {
    const auto next = parse(line);
    if (!next) {
      continue;
    }
    if (found) {
      const bool continues = next->begin == found->end && next->shared && next->device == found->device &&
                             next->inode == found->inode &&
                             next->offset == found->offset + (found->end - found->begin);
      if (!continues) {
        return std::nullopt;
      }
      found->end = next->end;
    } else if (next->begin <= begin && begin < next->end) {
      found = next;
    }
    if (found && end <= found->end) {
      return found;
    }
  }
  return std::nullopt;
}

}  // namespace tutti::runtime::nvme
