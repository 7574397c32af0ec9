// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "checksum.h"
#include "line_copy.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tutti::kv {

// Copies one line. Part of its caller, so that it is compiled for each of the caller's clones.
template <bool kStream>
[[gnu::always_inline]] inline void store_line(std::byte* target, const std::byte* source) noexcept {
#if defined(__x86_64__)
  if constexpr (kStream) {
    constexpr int kParts = static_cast<int>(kLineBytes / sizeof(__m128i));
    const auto* from = reinterpret_cast<const __m128i*>(source);
    auto* to = reinterpret_cast<__m128i*>(target);
    for (int part = 0; part < kParts; ++part) {
      _mm_stream_si128(to + part, _mm_loadu_si128(from + part));
    }
    return;
  }
#endif
  std::memcpy(target, source, kLineBytes);
}

// Streaming stores exist for 16-byte boundaries only.
[[nodiscard]] inline bool can_stream(const std::byte* target, Stores stores) noexcept {
  return stores == Stores::kStreaming && reinterpret_cast<std::uintptr_t>(target) % 16 == 0;
}

}  // namespace tutti::kv
