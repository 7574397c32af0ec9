// SPDX-License-Identifier: Apache-2.0
#include "shared_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "../mapped_file.hpp"
#include "tutti/runtime/error.hpp"

namespace tutti::runtime::nvme::qtest {

SharedFile::SharedFile(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  struct stat info{};
  void* mapped = MAP_FAILED;
  if (fd >= 0 && ::fstat(fd, &info) == 0) {
    mapped =
        ::mmap(nullptr, static_cast<std::size_t>(info.st_size), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  const int error = errno;
  if (fd >= 0) {
    ::close(fd);
  }
  if (mapped == MAP_FAILED) {
    throw SystemError(error, std::string("cannot map the machine's memory: ") + std::strerror(error), path);
  }
  address_ = static_cast<std::byte*>(mapped);
  size_ = static_cast<std::uint64_t>(info.st_size);
  device_ = info.st_dev;
  inode_ = info.st_ino;
}

SharedFile::~SharedFile() { ::munmap(address_, size_); }

std::optional<std::uint64_t> SharedFile::offset_of(const std::byte* address, std::uint64_t size) const {
  const auto begin = reinterpret_cast<std::uint64_t>(address);
  const auto mapped = find_mapped_file(begin, begin + size);
  if (!mapped || !mapped->shared || mapped->device != device_ || mapped->inode != inode_) {
    return std::nullopt;
  }
  const std::uint64_t offset = mapped->offset + (begin - mapped->begin);
  return offset + size <= size_ ? std::optional(offset) : std::nullopt;
}

}  // namespace tutti::runtime::nvme::qtest
