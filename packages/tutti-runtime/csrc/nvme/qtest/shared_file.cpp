// SPDX-License-Identifier: Apache-2.0
#include "shared_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "tutti/runtime/error.hpp"

namespace tutti::runtime::nvme::qtest {
namespace {

/// A line of /proc/self/maps (proc(5)).
struct Mapped {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint64_t offset = 0;
  dev_t device = 0;
  ino_t inode = 0;
  bool shared = false;
};

std::optional<Mapped> parse(const std::string& line) {
  Mapped found;
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
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const auto mapped = parse(line);
    if (mapped && mapped->begin <= begin && begin < mapped->end) {
      const bool ours = mapped->shared && mapped->device == device_ && mapped->inode == inode_;
      const std::uint64_t offset = mapped->offset + (begin - mapped->begin);
      return ours && size <= mapped->end - begin && offset + size <= size_ ? std::optional(offset)
                                                                           : std::nullopt;
    }
  }
  return std::nullopt;
}

}  // namespace tutti::runtime::nvme::qtest
