// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "../mapped_file.hpp"

namespace tutti::runtime::nvme::broker {

/// Zeroed memory in a file without a name that neither shrinks nor grows. @throws SystemError
[[nodiscard]] Descriptor make_memory_file(const char* name, std::uint64_t size);

/// The same file for readers: it cannot be mapped for writing from now on, also not through this descriptor.
/// Mappings that exist stay. @throws SystemError
[[nodiscard]] Descriptor make_reader(const Descriptor& file);

/// Memory of another process that can be mapped without ever failing under the reader, and costs the reader
/// nothing: small pages, allocated, in a file that cannot shrink and holds the range.
/// @throws InvalidArgument with the rule; SystemError
void require_steady(int fd, std::uint64_t offset, std::uint64_t size);

/// The file behind a range of this process's memory.
struct FilePlace {
  Descriptor file;
  std::uint64_t offset = 0;
};

/// @throws InvalidArgument for memory that is no shared mapping of a file that the process still has open,
/// and of which it can say that it does not shrink.
[[nodiscard]] FilePlace find_file(const std::byte* address, std::uint64_t size);

}  // namespace tutti::runtime::nvme::broker
