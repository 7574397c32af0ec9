// SPDX-License-Identifier: Apache-2.0
// Words that another agent (CPU, GPU or drive) reads or writes at the same time. On the GPU every access has
// system scope: a drive and the CPU are outside of the device's.
#pragma once

#include <cstdint>

#include "tutti/runtime/nvme/core/annotate.hpp"

#if !defined(__CUDA_ARCH__)
#include <atomic>
#endif

namespace tutti::runtime::nvme {

TUTTI_HD std::uint32_t load_acquire(const std::uint32_t* word) noexcept {
#if defined(__CUDA_ARCH__)
  std::uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
#else
  return std::atomic_ref<std::uint32_t>(*const_cast<std::uint32_t*>(word)).load(std::memory_order_acquire);
#endif
}

TUTTI_HD std::uint64_t load_acquire(const std::uint64_t* word) noexcept {
#if defined(__CUDA_ARCH__)
  std::uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
#else
  return std::atomic_ref<std::uint64_t>(*const_cast<std::uint64_t*>(word)).load(std::memory_order_acquire);
#endif
}

TUTTI_HD std::uint32_t load_relaxed(const std::uint32_t* word) noexcept {
#if defined(__CUDA_ARCH__)
  std::uint32_t value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
#else
  return std::atomic_ref<std::uint32_t>(*const_cast<std::uint32_t*>(word)).load(std::memory_order_relaxed);
#endif
}

TUTTI_HD std::uint64_t load_relaxed(const std::uint64_t* word) noexcept {
#if defined(__CUDA_ARCH__)
  std::uint64_t value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
#else
  return std::atomic_ref<std::uint64_t>(*const_cast<std::uint64_t*>(word)).load(std::memory_order_relaxed);
#endif
}

TUTTI_HD void store_release(std::uint32_t* word, std::uint32_t value) noexcept {
#if defined(__CUDA_ARCH__)
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
#else
  std::atomic_ref<std::uint32_t>(*word).store(value, std::memory_order_release);
#endif
}

TUTTI_HD void store_release(std::uint64_t* word, std::uint64_t value) noexcept {
#if defined(__CUDA_ARCH__)
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
#else
  std::atomic_ref<std::uint64_t>(*word).store(value, std::memory_order_release);
#endif
}

TUTTI_HD void store_relaxed(std::uint32_t* word, std::uint32_t value) noexcept {
#if defined(__CUDA_ARCH__)
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
#else
  std::atomic_ref<std::uint32_t>(*word).store(value, std::memory_order_relaxed);
#endif
}

TUTTI_HD void store_relaxed(std::uint64_t* word, std::uint64_t value) noexcept {
#if defined(__CUDA_ARCH__)
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
#else
  std::atomic_ref<std::uint64_t>(*word).store(value, std::memory_order_relaxed);
#endif
}

/// Stores to one word, and only then looks at the other. Of two that do so crosswise, one sees the other's
/// store.
TUTTI_HD std::uint32_t say_and_look(std::uint32_t* said, std::uint32_t value,
                                    const std::uint32_t* other) noexcept {
#if defined(__CUDA_ARCH__)
  store_relaxed(said, value);
  asm volatile("fence.sc.sys;" ::: "memory");
  return load_acquire(other);
#else
  std::atomic_ref<std::uint32_t>(*said).store(value, std::memory_order_seq_cst);
  return std::atomic_ref<std::uint32_t>(*const_cast<std::uint32_t*>(other)).load(std::memory_order_seq_cst);
#endif
}

/// Tells the drive a new tail or head. What was written before (entries, lists, data) is visible to whoever
/// reads the new value.
TUTTI_HD void ring_doorbell(std::uint32_t* doorbell, std::uint32_t value) noexcept {
#if defined(__CUDA_ARCH__)
  // A doorbell is a device's register: no cache may keep the store, and none may be merged with another.
  asm volatile("fence.acq_rel.sys;" ::: "memory");
  asm volatile("st.mmio.relaxed.sys.global.u32 [%0], %1;" ::"l"(doorbell), "r"(value) : "memory");
#else
  std::atomic_ref<std::uint32_t>(*doorbell).store(value, std::memory_order_release);
#endif
}

}  // namespace tutti::runtime::nvme
