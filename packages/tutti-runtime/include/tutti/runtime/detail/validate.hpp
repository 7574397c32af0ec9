// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/runtime/data_path.hpp"
#include "tutti/runtime/io.hpp"

namespace tutti::runtime::detail {

/// Checks one request against what its handles name (null: the handle names nothing).
/// @returns 0, or EINVAL (malformed, misaligned, out of range), EBADF (bad handle), EACCES (write to a target
/// opened read-only).
[[nodiscard]] int check_request(const IoRequest& request, const Target* target,
                                const Memory* memory) noexcept;

}  // namespace tutti::runtime::detail
