// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tutti/runtime/config.hpp"
#include "tutti/runtime/data_path.hpp"
#include "tutti/runtime/detail/file_target.hpp"

namespace tutti::runtime::detail {

/// Memory objects inside the process; submit() returns when the bytes have moved.
[[nodiscard]] std::unique_ptr<DataPath> make_memory_path();

/// pread and pwrite on a pool of `threads` threads.
[[nodiscard]] std::unique_ptr<DataPath> make_posix_path(FileSettings files, std::uint32_t threads);

/// io_uring, one thread that submits and reaps. @throws SystemError when the kernel has no usable io_uring.
[[nodiscard]] std::unique_ptr<DataPath> make_uring_path(FileSettings files, std::uint32_t queue_depth);

using LowerRung = std::function<std::unique_ptr<DataPath>()>;

/// Asks `upper`, and of what fails there in a way that may be the path's own fault asks the lower rung, which
/// is made when it is first needed and must take `upper`'s targets. After `strikes` operations in a row that
/// only the lower rung could do, all go there, for good.
[[nodiscard]] std::unique_ptr<DataPath> make_stepping_path(std::unique_ptr<DataPath> upper,
                                                           LowerRung make_lower, std::uint32_t strikes,
                                                           std::shared_ptr<Notices> notices);

/// Queues per root in front of `next`: reads first, writes paced by `policy`, and no root takes the room of
/// another.
[[nodiscard]] std::unique_ptr<DataPath> make_scheduled_path(std::unique_ptr<DataPath> next,
                                                            const WritePolicy& policy);

/// Opens striped:// targets as one shard per root on `next` and splits their operations; all other targets
/// and operations pass through. `roots` and `unit` stand in where a URI names none.
struct StripeDefaults {
  std::vector<std::string> roots;
  std::uint64_t unit = std::uint64_t{1} << 20;
};
[[nodiscard]] std::unique_ptr<DataPath> make_striped_path(std::unique_ptr<DataPath> next,
                                                          StripeDefaults defaults);

/// cuFile on a pool of `threads` threads, with a descriptor of its own for every target; `library` is
/// libcufile's file, or empty for the loader's search.
/// @throws SystemError where CUDA or cuFile cannot be used.
[[nodiscard]] std::unique_ptr<DataPath> make_cufile_path(FileSettings files, std::uint32_t threads,
                                                         const std::string& library);

}  // namespace tutti::runtime::detail
