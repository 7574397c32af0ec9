// SPDX-License-Identifier: Apache-2.0
#include "shared_memory.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
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

/// Memory that is there when it is first touched, whoever touches it. What lies beyond the file's end is not.
void allocate(const Descriptor& file, std::uint64_t offset, std::uint64_t size) {
  const auto begin = static_cast<off_t>(offset);
  if (::fallocate(file.get(), FALLOC_FL_KEEP_SIZE, begin, static_cast<off_t>(size)) != 0) {
    refuse("cannot allocate " + std::to_string(size) + " bytes of shared memory");
  }
}

/// A descriptor of the process's own for the file, made anew.
Descriptor find_descriptor(const MappedFile& mapped) {
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
  const auto mapped = find_mapped_file(begin, begin + size);
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
