// SPDX-License-Identifier: Apache-2.0
#include "tutti/runtime/detail/file_op.hpp"

#include <cerrno>

namespace tutti::runtime::detail {
namespace {

// EINTR and EAGAIN are no verdict on the data, but a system that answers nothing else must not be asked for
// ever.
constexpr std::uint32_t kMaxAttempts = 1000;

Step finish(IoOp& op, std::int32_t status) noexcept {
  op.status = status;
  return Step::kDone;
}

Step handle_error(IoOp& op, int error, FileOpener& opener) noexcept {
  if ((error == EINTR || error == EAGAIN) && ++op.attempts < kMaxAttempts) {
    return Step::kAgain;
  }
  // Some file systems take O_DIRECT at open and refuse it at the first transfer. Offsets, length and address
  // are aligned here, so EINVAL on a direct descriptor means just that. A second EINVAL is the final answer;
  // the flag is per operation because another one may have dropped O_DIRECT while this one was under way.
  FileTarget& file = file_of(op);
  if (error == EINVAL && op.direction != Direction::kFlush && file.may_fall_back() && !op.buffered_retry) {
    op.buffered_retry = true;
    if (file.drop_direct()) {
      opener.count_fallback();
    }
    return Step::kAgain;
  }
  return finish(op, error);
}

}  // namespace

Step advance(IoOp& op, std::int64_t result, FileOpener& opener) noexcept {
  if (result < 0) {
    return handle_error(op, static_cast<int>(-result), opener);
  }
  if (op.direction == Direction::kFlush) {
    return finish(op, 0);
  }
  if (result == 0) {
    return finish(op, EIO);  // the file ends inside the range that it had when it was opened
  }
  op.attempts = 0;
  op.done += static_cast<std::uint64_t>(result);
  return op.done < op.length ? Step::kAgain : finish(op, 0);
}

}  // namespace tutti::runtime::detail
