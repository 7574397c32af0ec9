// SPDX-License-Identifier: Apache-2.0
#include "tutti/runtime/detail/cuda_stream.hpp"

#include <optional>

#include "tutti/runtime/shim/cuda.hpp"

namespace tutti::runtime::detail {
namespace {

/// A stream with its context current, which these operations need. The default streams are those of the
/// caller's own context.
class CurrentStream {
 public:
  explicit CurrentStream(std::uint64_t number) : stream_(reinterpret_cast<shim::CuStream>(number)) {
    constexpr std::uint64_t last_default_stream = 2;  // CU_STREAM_PER_THREAD
    if (number > last_default_stream) {
      shim::CuContext context = nullptr;
      shim::check("cuStreamGetCtx", shim::cuda().stream_get_context(stream_, &context));
      current_.emplace(context);
    }
  }

  [[nodiscard]] shim::CuStream get() const noexcept { return stream_; }

 private:
  shim::CuStream stream_;
  std::optional<shim::ScopedContext> current_;
};

shim::CuDevicePtr pointer_to(std::byte* word) {
  shim::CuDevicePtr pointer = 0;
  shim::check("cuMemHostGetDevicePointer", shim::cuda().mem_host_get_device_pointer(&pointer, word, 0));
  return pointer;
}

}  // namespace

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
