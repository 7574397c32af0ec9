// SPDX-License-Identifier: Apache-2.0
// Words in pinned host memory that a CUDA stream waits for or writes, in stream order.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tutti::runtime::detail {

/// Work enqueued on the stream from now on waits until the 64-bit word has reached `value` (the difference
/// counts as signed, so that a counter may wrap). The caller does not wait. `stream` is a CUstream or
/// cudaStream_t as a number; 0, 1 and 2 are the default streams of the current context.
/// @throws SystemError, also where the device has no such operation.
void stream_wait_word(std::uint64_t stream, std::byte* word, std::uint64_t value);

/// The stream stores `value` to the word when all work enqueued before has finished, and what that work wrote
/// is then visible. @throws SystemError
void stream_write_word(std::uint64_t stream, std::byte* word, std::uint64_t value);

}  // namespace tutti::runtime::detail
