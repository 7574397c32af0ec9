// SPDX-License-Identifier: Apache-2.0
// CUDA streams as callers give them, and words in pinned host memory that a stream waits for or writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "tutti/runtime/shim/cuda.hpp"

namespace tutti::runtime::detail {

/// A stream with its context current, which operations on it need. The default streams (0, 1 and 2) are those
/// of `context_of_defaults`, or where that is null of the context that is current already.
class CurrentStream {
 public:
  /// @throws SystemError for what is no stream.
  explicit CurrentStream(std::uint64_t number, shim::CuContext context_of_defaults = nullptr);

  [[nodiscard]] shim::CuStream get() const noexcept { return stream_; }

 private:
  shim::CuStream stream_;
  std::optional<shim::ScopedContext> current_;
};

/// @throws InvalidArgument while the stream is captured into a graph; SystemError for what is no stream.
void require_no_capture(std::uint64_t stream);

/// Work enqueued on the stream from now on waits until the 64-bit word has reached `value` (the difference
/// counts as signed, so that a counter may wrap). The caller does not wait. `stream` is a CUstream or
/// cudaStream_t as a number; 0, 1 and 2 are the default streams of the current context.
/// @throws SystemError, also where the device has no such operation.
void stream_wait_word(std::uint64_t stream, std::byte* word, std::uint64_t value);

/// The stream stores `value` to the word when all work enqueued before has finished, and what that work wrote
/// is then visible. @throws SystemError
void stream_write_word(std::uint64_t stream, std::byte* word, std::uint64_t value);

}  // namespace tutti::runtime::detail
