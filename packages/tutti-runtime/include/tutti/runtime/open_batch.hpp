// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <vector>

#include "tutti/runtime/storage_runtime.hpp"

namespace tutti::runtime {

/// One item of open_batch: a handle, or the exception that StorageRuntime::open threw.
struct OpenOutcome {
  std::uint64_t target = 0;
  std::exception_ptr error;
};

/// Opens all of `uris`, on up to 17 threads once the first few were slow; the order is kept and a failed one
/// takes no other with it. `roots` is that of StorageRuntime::open, for every one. @throws Closed and Forked,
/// and nothing is then left open.
[[nodiscard]] std::vector<OpenOutcome> open_batch(StorageRuntime& runtime, std::span<const std::string> uris,
                                                  bool writable, std::span<const std::string> roots = {});

}  // namespace tutti::runtime
