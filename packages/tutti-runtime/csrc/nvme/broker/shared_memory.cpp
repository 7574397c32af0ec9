// SPDX-License-Identifier: Apache-2.0
#include "shared_memory.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "tutti/runtime/error.hpp"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010  // linux/fcntl.h, since 5.1
#endif

namespace tutti::runtime::nvme::broker {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  const int error = errno;
  throw SystemError(error, what + ": " + std::strerror(error));
}

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

/// The mapping that has the whole range; neighbours that continue each other's file are one.
std::optional<Mapped> find_mapping(std::uint64_t begin, std::uint64_t end) {
  std::ifstream maps("/proc/self/maps");
  std::optional<Mapped> found;
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

/// Memory that is there when it is first touched, whoever touches it. What lies beyond the file's end is not.
void allocate(const Descriptor& file, std::uint64_t offset, std::uint64_t size) {
  const auto begin = static_cast<off_t>(offset);
  if (::fallocate(file.get(), FALLOC_FL_KEEP_SIZE, begin, static_cast<off_t>(size)) != 0) {
    refuse("cannot allocate " + std::to_string(size) + " bytes of shared memory");
  }
}

/// A descriptor of the process's own for the file, made anew.
Descriptor find_descriptor(const Mapped& mapped) {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc/self/fd"), &::closedir);
  while (folder != nullptr) {
    const dirent* const entry = ::readdir(folder.get());
    if (entry == nullptr) {
      break;
    }
    char* rest = nullptr;
    const long number = std::strtol(entry->d_name, &rest, 10);
    struct stat info{};
    if (*rest != '\0' || rest == entry->d_name || ::fstat(static_cast<int>(number), &info) != 0) {
      continue;
    }
    if (info.st_dev == mapped.device && info.st_ino == mapped.inode) {
      return Descriptor(::fcntl(static_cast<int>(number), F_DUPFD_CLOEXEC, 0));
    }
  }
  return {};
}

}  // namespace

Descriptor::~Descriptor() {
  if (fd_ >= 0) {
    ::close(fd_);
  }
}
Descriptor::Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

SharedMapping::SharedMapping(int fd, std::uint64_t offset, std::uint64_t size, bool writable) : size_(size) {
  void* const memory = ::mmap(nullptr, size, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd,
                              static_cast<off_t>(offset));
  if (memory == MAP_FAILED) {
    refuse("cannot map " + std::to_string(size) + " bytes of shared memory");
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

Descriptor make_memory_file(const char* name, std::uint64_t size) {
  Descriptor file(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.is_open() || ::ftruncate(file.get(), static_cast<off_t>(size)) != 0) {
    refuse("cannot make " + std::to_string(size) + " bytes of shared memory");
  }
  allocate(file, 0, size);
  if (::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    refuse("cannot seal shared memory");
  }
  return file;
}

Descriptor make_reader(const Descriptor& file) {
  const std::string path = "/proc/self/fd/" + std::to_string(file.get());
  Descriptor reader(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!reader.is_open() || ::fcntl(file.get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) != 0) {
    refuse("cannot make shared memory read-only for others");
  }
  return reader;
}

void require_steady(int fd, std::uint64_t offset, std::uint64_t size) {
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  struct stat info{};
  struct statfs system{};
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || ::fstat(fd, &info) != 0 || ::fstatfs(fd, &system) != 0) {
    throw InvalidArgument("a window's file must be a memfd that allows sealing");
  }
  if (system.f_type != TMPFS_MAGIC) {
    throw InvalidArgument(
        "a window's file must be a memfd in small pages: one of huge pages can fail under us");
  }
  if ((seals & F_SEAL_SHRINK) == 0 || (seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) != 0) {
    throw InvalidArgument("a window's file must be sealed against shrinking, and not against writing");
  }
  const auto held = (static_cast<std::uint64_t>(info.st_size) + page - 1) / page * page;
  if (offset % page != 0 || size % page != 0 || size == 0 || offset > held || size > held - offset) {
    throw InvalidArgument("offset=" + std::to_string(offset) + " and size=" + std::to_string(size) +
                          " must be whole pages inside of the file, which has " + std::to_string(held) +
                          " bytes");
  }
  constexpr std::uint64_t block = 512;  // of st_blocks, stat(2)
  if (static_cast<std::uint64_t>(info.st_blocks) * block < size) {
    throw InvalidArgument(
        "a window's memory must be allocated (fallocate) before it is shared: whoever shares it "
        "pays for it");
  }
}

FilePlace find_file(const std::byte* address, std::uint64_t size) {
  const auto begin = reinterpret_cast<std::uint64_t>(address);
  const auto mapped = find_mapping(begin, begin + size);
  constexpr const char* remedy =
      "; use tutti_runtime.nvmed.SharedMemory, or a memfd mapped with MAP_SHARED that stays open";
  if (!mapped || !mapped->shared) {
    throw InvalidArgument(
        std::string("a broker reaches only shared memory, and this is memory of the process alone") + remedy);
  }
  FilePlace place;
  place.file = find_descriptor(*mapped);
  if (!place.file.is_open()) {
    throw InvalidArgument(std::string("the file behind this shared memory is not open any more") + remedy);
  }
  const int seals = ::fcntl(place.file.get(), F_GET_SEALS);
  if (seals < 0 ||
      ((seals & F_SEAL_SHRINK) == 0 && ::fcntl(place.file.get(), F_ADD_SEALS, F_SEAL_SHRINK) != 0)) {
    throw InvalidArgument(
        std::string("the file behind this shared memory cannot be sealed against shrinking") + remedy);
  }
  place.offset = mapped->offset + (begin - mapped->begin);
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  allocate(place.file, place.offset / page * page, (size + page - 1) / page * page);
  return place;
}

}  // namespace tutti::runtime::nvme::broker
