// SPDX-License-Identifier: Apache-2.0
// Counters that several lanes of one team, or several teams, change at once.
#pragma once

#include <cstdint>

#include "tutti/runtime/nvme/core/annotate.hpp"

#if !defined(__CUDA_ARCH__)
#include <atomic>
#endif

namespace tutti::runtime::nvme {

/// Acquires and releases within one GPU, or among the threads of the host. @returns the value before.
TUTTI_HD std::uint32_t fetch_add(std::uint32_t* word, std::uint32_t value) noexcept {
#if defined(__CUDA_ARCH__)
  std::uint32_t before;
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(word), "r"(value)
               : "memory");
  return before;
#else
  return std::atomic_ref<std::uint32_t>(*word).fetch_add(value, std::memory_order_acq_rel);
#endif
}

/// As fetch_add().
TUTTI_HD std::uint32_t exchange(std::uint32_t* word, std::uint32_t value) noexcept {
#if defined(__CUDA_ARCH__)
  std::uint32_t before;
  asm volatile("atom.exch.acq_rel.gpu.global.b32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(word), "r"(value)
               : "memory");
  return before;
#else
  return std::atomic_ref<std::uint32_t>(*word).exchange(value, std::memory_order_acq_rel);
#endif
}

/// The smaller of the two stays. Orders nothing.
TUTTI_HD void keep_smaller(std::uint64_t* word, std::uint64_t value) noexcept {
#if defined(__CUDA_ARCH__)
  asm volatile("red.min.relaxed.gpu.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
#else
  std::atomic_ref<std::uint64_t> kept(*word);
  std::uint64_t seen = kept.load(std::memory_order_relaxed);
  while (value < seen && !kept.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
#endif
}

}  // namespace tutti::runtime::nvme
