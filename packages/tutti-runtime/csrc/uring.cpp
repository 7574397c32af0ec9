// SPDX-License-Identifier: Apache-2.0
#include "tutti/runtime/detail/uring.hpp"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "tutti/runtime/error.hpp"

namespace tutti::runtime::detail {
namespace {

[[noreturn]] void refuse(int error, const std::string& what) {
  throw SystemError(error, what + ": " + std::strerror(error));
}

std::uint32_t* word(std::byte* ring, std::uint32_t offset) {
  return reinterpret_cast<std::uint32_t*>(ring + offset);
}

}  // namespace

Uring::Uring(std::uint32_t entries) {
  set_up(entries);
  try {
    map();
    require_operations();
  } catch (...) {
    unmap();
    ::close(fd_);
    throw;
  }
}

Uring::~Uring() {
  unmap();
  ::close(fd_);
}

void Uring::set_up(std::uint32_t entries) {
  const std::uint32_t newest_first[] = {
      abi::kSetupSubmitAll | abi::kSetupSingleIssuer | abi::kSetupDeferTaskrun,
      abi::kSetupSubmitAll | abi::kSetupCoopTaskrun,
      0,
  };
  for (const std::uint32_t flags : newest_first) {
    params_ = {};
    params_.flags = flags;
    fd_ = static_cast<int>(::syscall(abi::kSetup, entries, &params_));
    if (fd_ >= 0) {
      setup_flags_ = flags;
      return;
    }
    if (errno != EINVAL) {  // EINVAL: a flag that this kernel does not know
      break;
    }
  }
  refuse(errno, "io_uring_setup");
}

void Uring::map() {
  if ((params_.features & abi::kFeatureSingleMmap) == 0) {
    throw SystemError(ENOSYS, "this kernel's io_uring is older than 5.4");
  }
  ring_bytes_ = std::max(params_.sq.array + params_.sq_entries * sizeof(std::uint32_t),
                         params_.cq.cqes + params_.cq_entries * sizeof(abi::Cqe));
  sqes_bytes_ = params_.sq_entries * sizeof(abi::Sqe);
  const auto map_part = [this](std::size_t bytes, std::uint64_t offset) {
    void* part = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd_,
                        static_cast<off_t>(offset));
    if (part == MAP_FAILED) {
      refuse(errno, "cannot map the io_uring");
    }
    return static_cast<std::byte*>(part);
  };
  ring_ = map_part(ring_bytes_, abi::kMapSubmissionRing);
  sqes_ = reinterpret_cast<abi::Sqe*>(map_part(sqes_bytes_, abi::kMapEntries));
  sq_head_ = word(ring_, params_.sq.head);
  sq_tail_ = word(ring_, params_.sq.tail);
  cq_head_ = word(ring_, params_.cq.head);
  cq_tail_ = word(ring_, params_.cq.tail);
  sq_mask_ = *word(ring_, params_.sq.ring_mask);
  cq_mask_ = *word(ring_, params_.cq.ring_mask);
  cqes_ = reinterpret_cast<abi::Cqe*>(ring_ + params_.cq.cqes);
  // The indirection from ring places to entries is not needed: place i always names entry i.
  std::uint32_t* const array = word(ring_, params_.sq.array);
  for (std::uint32_t i = 0; i < params_.sq_entries; ++i) {
    array[i] = i;
  }
}

void Uring::unmap() noexcept {
  if (sqes_ != nullptr) {
    ::munmap(sqes_, sqes_bytes_);
  }
  if (ring_ != nullptr) {
    ::munmap(ring_, ring_bytes_);
  }
}

void Uring::require_operations() {
  const auto probe = std::make_unique<abi::Probe>();
  std::memset(probe.get(), 0, sizeof *probe);
  const int error = register_resource(abi::kRegisterProbe, probe.get(), 256);
  if (error != 0) {
    throw SystemError(ENOSYS, "this kernel's io_uring is older than 5.6");
  }
  for (const abi::Opcode opcode : {abi::kRead, abi::kWrite, abi::kFsync, abi::kReadFixed, abi::kWriteFixed}) {
    if (opcode > probe->last_op || (probe->ops[opcode].flags & abi::kProbeSupported) == 0) {
      throw SystemError(ENOSYS, "this kernel's io_uring lacks operation " + std::to_string(opcode));
    }
  }
}

abi::Sqe* Uring::next_sqe() noexcept {
  // Orders our reuse of an entry after the kernel's reading of it.
  const std::uint32_t head = __atomic_load_n(sq_head_, __ATOMIC_ACQUIRE);
  if (local_tail_ - head >= params_.sq_entries) {
    return nullptr;
  }
  abi::Sqe* sqe = &sqes_[local_tail_++ & sq_mask_];
  std::memset(sqe, 0, sizeof *sqe);
  return sqe;
}

int Uring::enter() noexcept {
  // The kernel must see the filled-in entries before the tail that announces them.
  __atomic_store_n(sq_tail_, local_tail_, __ATOMIC_RELEASE);
  const std::uint32_t unseen = local_tail_ - __atomic_load_n(sq_head_, __ATOMIC_ACQUIRE);
  const long result = ::syscall(abi::kEnter, fd_, unseen, 1U, abi::kEnterGetEvents, nullptr, 0UL);
  return result < 0 ? errno : 0;
}

int Uring::register_resource(std::uint32_t opcode, const void* argument, std::uint32_t count) noexcept {
  return ::syscall(abi::kRegister, fd_, opcode, argument, count) < 0 ? errno : 0;
}

int Uring::make_buffer_table(std::uint32_t count) noexcept {
  abi::ResourceRegister table{};
  table.count = count;
  table.flags = abi::kRegisterSparse;
  return register_resource(abi::kRegisterBuffers2, &table, sizeof table);
}

int Uring::update_buffers(std::uint32_t first, const void* iovecs, std::uint32_t count) noexcept {
  abi::ResourceUpdate update{};
  update.offset = first;
  update.data = reinterpret_cast<std::uint64_t>(iovecs);
  update.count = count;
  const long updated = ::syscall(abi::kRegister, fd_, abi::kRegisterBuffersUpdate, &update, sizeof update);
  if (updated < 0) {
    return errno;
  }
  return static_cast<std::uint32_t>(updated) == count ? 0 : ENOMEM;
}

}  // namespace tutti::runtime::detail
