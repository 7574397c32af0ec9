// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <cstdint>
#include <string>

#include "tutti/runtime/config.hpp"

namespace tutti::runtime::detail {

/// Which file a path named. The generation tells a file from a later one that got its inode number; 0 where
/// the file system has none.
struct FileIdentity {
  dev_t device = 0;
  ino_t inode = 0;
  std::uint32_t generation = 0;

  friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
};

[[nodiscard]] FileIdentity identity_of(int fd, const struct stat& info) noexcept;

/// open(2) without following symbolic links: in the last component, or in any. @returns a descriptor or
/// -errno; -ENOSYS for kAll on a kernel without openat2 (older than 5.6).
[[nodiscard]] int open_no_follow(const std::string& path, int flags, NoFollow no_follow) noexcept;

}  // namespace tutti::runtime::detail
