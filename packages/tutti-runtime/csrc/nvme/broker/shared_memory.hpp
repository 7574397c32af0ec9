// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace tutti::runtime::nvme::broker {

/// A descriptor that is closed with its owner. Move-only.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) noexcept : fd_(fd) {}
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept;
  Descriptor& operator=(Descriptor&& other) noexcept;
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  [[nodiscard]] int get() const noexcept { return fd_; }
  [[nodiscard]] bool is_open() const noexcept { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

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
