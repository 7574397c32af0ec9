// SPDX-License-Identifier: Apache-2.0
// Files mapped into this process, and which file is behind an address.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>

#include "descriptor.hpp"

namespace tutti::runtime::nvme {

/// A shared mapping of a file, undone with its owner. Move-only.
class SharedMapping {
 public:
  SharedMapping() = default;
  /// @throws SystemError
  SharedMapping(int fd, std::uint64_t offset, std::uint64_t size, bool writable);
  ~SharedMapping();
  SharedMapping(SharedMapping&& other) noexcept;
  SharedMapping& operator=(SharedMapping&& other) noexcept;
  SharedMapping(const SharedMapping&) = delete;
  SharedMapping& operator=(const SharedMapping&) = delete;

  [[nodiscard]] std::byte* address() const noexcept { return address_; }
  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }
  [[nodiscard]] std::uint32_t* words() const noexcept { return reinterpret_cast<std::uint32_t*>(address_); }

 private:
  std::byte* address_ = nullptr;
  std::uint64_t size_ = 0;
};

/// A piece of this process's memory, and what is behind it: a line of /proc/self/maps (proc(5)).
struct MappedFile {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint64_t offset = 0;  ///< of `begin` in the file
  dev_t device = 0;
  ino_t inode = 0;
  bool shared = false;
};

/// The mapping that has all from `begin` to `end`; neighbours that continue each other's file are one.
[[nodiscard]] std::optional<MappedFile> find_mapped_file(std::uint64_t begin, std::uint64_t end);

}  // namespace tutti::runtime::nvme
