// SPDX-License-Identifier: Apache-2.0
#include <cerrno>

#include "tutti/runtime/detail/paths.hpp"
#include "tutti/runtime/error.hpp"

namespace tutti::runtime::detail {

std::unique_ptr<DataPath> make_uring_path(DirectPolicy, std::uint32_t) {
  throw SystemError(ENOSYS, "the io_uring data path is not part of this build");
}

}  // namespace tutti::runtime::detail
