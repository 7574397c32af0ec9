// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "tutti/runtime/detail/file_target.hpp"

namespace tutti::runtime::detail {

enum class Step {
  kDone,   ///< `op.status` and `op.done` are final
  kAgain,  ///< issue what is left of the operation once more
};

/// Takes in the result of one system call for `op` (bytes, or -errno): the one place that knows what a
/// partial transfer, an end of file, an interruption and a refusal of O_DIRECT mean.
[[nodiscard]] Step advance(IoOp& op, std::int64_t result, FileOpener& opener) noexcept;

[[nodiscard]] inline FileTarget& file_of(const IoOp& op) noexcept {
  return static_cast<FileTarget&>(*op.target);
}

/// Where the rest of the operation begins in its file.
[[nodiscard]] inline std::uint64_t file_offset(const IoOp& op) noexcept {
  return file_of(op).base() + op.target_offset + op.done;
}

}  // namespace tutti::runtime::detail
