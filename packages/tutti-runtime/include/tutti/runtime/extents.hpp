// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tutti/runtime/error.hpp"

namespace tutti::runtime {

/// Why a file's blocks must not be addressed on the device.
enum class ExtentRule {
  kEmpty,        ///< the file has no bytes
  kHole,         ///< part of the file has no blocks
  kNotCovered,   ///< the extents end before the file does
  kTooMany,      ///< more than kMaxExtents runs
  kUnwritten,    ///< allocated, but reads as zeros whatever the blocks hold
  kDelayed,      ///< no place chosen yet
  kUnknown,      ///< the file system does not say where
  kInline,       ///< inside the inode, or packed into a block with others
  kShared,       ///< another file has the same blocks: a write would change it too
  kEncoded,      ///< compressed or encrypted
  kMisaligned,   ///< not on multiples of 4096 bytes
  kJournaled,    ///< written data may be in the journal only
  kRealtime,     ///< on a device of its own beside the file system's
  kUnsupported,  ///< the file system cannot tell extents
  kFileSystem,   ///< its "physical" addresses are not proven to be those of one device
  kChanged,      ///< the file changed while it was looked at
  kMalformed,    ///< an answer that no correct kernel gives
};

/// The rule's name in messages and in Python, such as "too_many".
[[nodiscard]] const char* name_of(ExtentRule rule) noexcept;

/// Bytes. `physical` counts from the beginning of the block device that the file system is on.
struct Extent {
  std::uint64_t logical = 0;
  std::uint64_t physical = 0;
  std::uint64_t length = 0;

  friend bool operator==(const Extent&, const Extent&) = default;
};

/// Most runs of one file: what one command of the GPU-initiated path can carry.
inline constexpr std::size_t kMaxExtents = 124;

/// A rule of ExtentRule is broken. Carries the extent at fault, as the kernel told it; of length 0 when the
/// whole file is at fault.
class ExtentRefused : public Error {
 public:
  ExtentRefused(ExtentRule rule, const std::string& message, Extent extent = {}, std::uint32_t flags = 0)
      : Error(message), rule_(rule), extent_(extent), flags_(flags) {}

  [[nodiscard]] ExtentRule rule() const noexcept { return rule_; }
  [[nodiscard]] const Extent& extent() const noexcept { return extent_; }
  [[nodiscard]] std::uint32_t flags() const noexcept { return flags_; }

 private:
  ExtentRule rule_;
  Extent extent_;
  std::uint32_t flags_;
};

/// What tells whether a file's extents may have moved since. Times in nanoseconds.
struct ExtentSignature {
  std::uint64_t device = 0;  ///< st_dev
  std::uint64_t inode = 0;
  std::uint32_t generation = 0;  ///< of the inode; 0 where the file system has none
  std::uint64_t size = 0;
  std::int64_t mtime = 0;
  std::int64_t ctime = 0;
  std::uint64_t extents_hash = 0;  ///< FNV-1a over the extents

  friend bool operator==(const ExtentSignature&, const ExtentSignature&) = default;
};

/// Extents that are written, unshared, aligned to 4096 bytes, at most kMaxExtents and cover the file from its
/// first byte to its size rounded up to 4096. Neighbours on the device are one.
struct ExtentMap {
  std::vector<Extent> extents;
  ExtentSignature signature;
};

/// Follows no symbolic link. With `sync` the file is made durable first, which gives delayed blocks a place.
/// @throws ExtentRefused, and SystemError with the path.
[[nodiscard]] ExtentMap resolve_extents(const std::string& path, bool sync);

}  // namespace tutti::runtime
