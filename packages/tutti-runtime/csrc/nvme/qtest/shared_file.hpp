// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace tutti::runtime::nvme::qtest {

/// A file that this process and QEMU both map.
class SharedFile {
 public:
  /// Maps all of it. @throws SystemError with the path
  explicit SharedFile(const std::string& path);
  ~SharedFile();
  SharedFile(const SharedFile&) = delete;
  SharedFile& operator=(const SharedFile&) = delete;

  [[nodiscard]] std::byte* address() const noexcept { return address_; }
  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }

  /// Where in the file a range of this process's memory lies; nothing when it is no shared mapping of the
  /// file in one piece.
  [[nodiscard]] std::optional<std::uint64_t> offset_of(const std::byte* address, std::uint64_t size) const;

 private:
  std::byte* address_ = nullptr;
  std::uint64_t size_ = 0;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

}  // namespace tutti::runtime::nvme::qtest
