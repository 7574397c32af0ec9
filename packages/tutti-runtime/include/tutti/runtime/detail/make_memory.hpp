// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "tutti/runtime/data_path.hpp"

namespace tutti::runtime::detail {

/// Checks a range that a caller wants to register, and pins it where its kind says so. `device` is a CUDA
/// ordinal: of pinned memory the device beside it (kAnyDevice: 0), of device memory its owner (kAnyDevice:
/// CUDA knows); of plain host memory it must be kAnyDevice.
/// @throws InvalidArgument, SystemError
[[nodiscard]] std::unique_ptr<Memory> make_memory(std::uint64_t address, std::uint64_t size, MemoryKind kind,
                                                  int device);

}  // namespace tutti::runtime::detail
