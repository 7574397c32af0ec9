// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "soft_windows.hpp"
#include "tutti/runtime/nvme/core/data_pointer.hpp"

namespace tutti::runtime::nvme::soft {

/// Pieces of memory that a data pointer names, in order.
struct DataPieces {
  std::vector<std::span<std::byte>> pieces;
  bool on_device = false;    ///< all of them are memory of a CUDA device; else none is
  std::uint16_t status = 0;  ///< 0, or the status with which the command fails
  std::string violation;     ///< what was wrong, in words
};

/// Resolves `length` bytes the way a drive does, with every rule checked. `out` is reused.
void resolve(Windows& windows, const DataPointer& pointer, std::uint64_t length, std::uint64_t page, bool sgl,
             DataPieces& out);

}  // namespace tutti::runtime::nvme::soft
