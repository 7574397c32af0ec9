// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "tutti/runtime/config.hpp"
#include "tutti/runtime/data_path.hpp"

namespace tutti::runtime::detail {

/// Memory objects inside the process; submit() returns when the bytes have moved.
[[nodiscard]] std::unique_ptr<DataPath> make_memory_path();

/// pread and pwrite on a pool of `threads` threads.
[[nodiscard]] std::unique_ptr<DataPath> make_posix_path(DirectPolicy direct, std::uint32_t threads);

/// io_uring, one thread that submits and reaps. @throws SystemError when the kernel has no usable io_uring.
[[nodiscard]] std::unique_ptr<DataPath> make_uring_path(DirectPolicy direct, std::uint32_t queue_depth);

}  // namespace tutti::runtime::detail
