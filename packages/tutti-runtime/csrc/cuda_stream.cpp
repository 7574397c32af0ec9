// SPDX-License-Identifier: Apache-2.0
#include "tutti/runtime/detail/cuda_stream.hpp"

#include <string>

#include "tutti/runtime/error.hpp"

namespace tutti::runtime::detail {
namespace {

shim::CuDevicePtr pointer_to(std::byte* word) {
  shim::CuDevicePtr pointer = 0;
  shim::check("cuMemHostGetDevicePointer", shim::cuda().mem_host_get_device_pointer(&pointer, word, 0));
  return pointer;
}

}  // namespace

CurrentStream::CurrentStream(std::uint64_t number, shim::CuContext context_of_defaults)
    : stream_(reinterpret_cast<shim::CuStream>(number)) {
  constexpr std::uint64_t last_default_stream = 2;  // CU_STREAM_PER_THREAD
  shim::CuContext context = context_of_defaults;
  if (number > last_default_stream) {
    shim::check("cuStreamGetCtx", shim::cuda().stream_get_context(stream_, &context));
  }
  if (context != nullptr) {
    current_.emplace(context);
  }
}

void require_no_capture(std::uint64_t stream) {
  const CurrentStream current(stream);
  int status = 0;
  shim::check("cuStreamIsCapturing", shim::cuda().stream_is_capturing(current.get(), &status));
  if (status != 0) {
    throw InvalidArgument(
        "stream=" + std::to_string(stream) +
        " is being captured into a graph, which file I/O cannot be part of; submit before or "
        "after the capture");
  }
}

void stream_wait_word(std::uint64_t stream, std::byte* word, std::uint64_t value) {
  const CurrentStream current(stream);
  shim::check("cuStreamWaitValue64", shim::cuda().stream_wait_value64(current.get(), pointer_to(word), value,
                                                                      shim::kCuStreamWaitGeq));
}

void stream_write_word(std::uint64_t stream, std::byte* word, std::uint64_t value) {
  const CurrentStream current(stream);
  shim::check("cuStreamWriteValue64",
              shim::cuda().stream_write_value64(current.get(), pointer_to(word), value, 0));
}

}  // namespace tutti::runtime::detail
