// SPDX-License-Identifier: Apache-2.0
#include "tutti/runtime/detail/validate.hpp"

#include <cerrno>

namespace tutti::runtime::detail {
namespace {

constexpr bool aligned(std::uint64_t value) { return value % kIoAlignment == 0; }

// Never adds offset and length: a sum of two 64-bit numbers can wrap into the range.
constexpr bool inside(std::uint64_t offset, std::uint64_t length, std::uint64_t size) {
  return length <= size && offset <= size - length;
}

}  // namespace

int check_request(const IoRequest& request, const Target* target, const Memory* memory) noexcept {
  if (request.reserved != 0 || request.direction > static_cast<std::uint32_t>(Direction::kFlush)) {
    return EINVAL;
  }
  if (request.direction == static_cast<std::uint32_t>(Direction::kFlush)) {
    if (target == nullptr) {
      return EBADF;
    }
    const bool unused_are_zero = request.memory == 0 && request.memory_offset == 0 &&
                                 request.target_offset == 0 && request.length == 0;
    return unused_are_zero ? 0 : EINVAL;
  }
  if (target == nullptr || memory == nullptr) {
    return EBADF;
  }
  if (request.length == 0 || request.length > kMaxSingleIoBytes || !aligned(request.length) ||
      !aligned(request.memory_offset) || !aligned(request.target_offset)) {
    return EINVAL;
  }
  if (!inside(request.memory_offset, request.length, memory->size) ||
      !inside(request.target_offset, request.length, target->size())) {
    return EINVAL;
  }
  if (request.direction == static_cast<std::uint32_t>(Direction::kWrite) && !target->writable()) {
    return EACCES;
  }
  return 0;
}

}  // namespace tutti::runtime::detail
