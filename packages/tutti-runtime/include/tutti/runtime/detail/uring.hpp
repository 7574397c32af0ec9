// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "tutti/runtime/detail/uring_abi.hpp"

namespace tutti::runtime::detail {

/// One io_uring, by raw system calls. Made, used and destroyed by one thread.
class Uring {
 public:
  /// Room for `entries` operations. Uses the newest set-up flags that the kernel takes.
  /// @throws SystemError when the kernel refuses or lacks an operation that is needed (before 5.6).
  explicit Uring(std::uint32_t entries);
  ~Uring();
  Uring(const Uring&) = delete;
  Uring& operator=(const Uring&) = delete;

  /// A zeroed entry to fill in; it goes to the kernel with the next enter(). Null when the ring is full.
  [[nodiscard]] abi::Sqe* next_sqe() noexcept;

  /// Hands new entries over and waits until one completion is there. @returns 0 or a positive errno.
  int enter() noexcept;

  /// Calls `handle(user_data, result)` for every completion that is there; @returns how many.
  template <typename Handle>
  std::uint32_t reap(Handle handle) noexcept;

  /// Makes an empty table of `count` registered buffers. @returns 0 or a positive errno.
  int make_buffer_table(std::uint32_t count) noexcept;

  /// Puts buffers (struct iovec) into the table from `first` on; a null one clears its place.
  int update_buffers(std::uint32_t first, const void* iovecs, std::uint32_t count) noexcept;

  [[nodiscard]] std::uint32_t setup_flags() const noexcept { return setup_flags_; }

 private:
  void set_up(std::uint32_t entries);
  void map();
  void unmap() noexcept;
  void require_operations();
  int register_resource(std::uint32_t opcode, const void* argument, std::uint32_t count) noexcept;

  int fd_ = -1;
  std::uint32_t setup_flags_ = 0;
  abi::Params params_{};
  std::byte* ring_ = nullptr;
  std::size_t ring_bytes_ = 0;
  abi::Sqe* sqes_ = nullptr;
  std::size_t sqes_bytes_ = 0;

  std::uint32_t* sq_head_ = nullptr;
  std::uint32_t* sq_tail_ = nullptr;
  std::uint32_t* cq_head_ = nullptr;
  std::uint32_t* cq_tail_ = nullptr;
  abi::Cqe* cqes_ = nullptr;
  std::uint32_t sq_mask_ = 0;
  std::uint32_t cq_mask_ = 0;
  std::uint32_t local_tail_ = 0;  ///< entries filled in; the kernel sees them when sq_tail_ follows
};

template <typename Handle>
std::uint32_t Uring::reap(Handle handle) noexcept {
  std::uint32_t head = *cq_head_;
  // Orders the reads of the entries after the kernel's write of the tail that announces them.
  const std::uint32_t tail = __atomic_load_n(cq_tail_, __ATOMIC_ACQUIRE);
  const std::uint32_t count = tail - head;
  for (; head != tail; ++head) {
    const abi::Cqe cqe = cqes_[head & cq_mask_];
    handle(cqe.user_data, cqe.result);
  }
  // The kernel may overwrite the entries once it sees the head, so not before they have been read.
  __atomic_store_n(cq_head_, head, __ATOMIC_RELEASE);
  return count;
}

}  // namespace tutti::runtime::detail
