// SPDX-License-Identifier: Apache-2.0
#include "tutti/runtime/detail/fiemap.hpp"

#include <linux/fiemap.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>

#include "tutti/runtime/io.hpp"

namespace tutti::runtime {

const char* name_of(ExtentRule rule) noexcept {
  constexpr std::array<const char*, 17> names{
      "empty",    "hole",        "not_covered", "too_many", "unwritten",  "delalloc",
      "unknown",  "inline",      "shared",      "encoded",  "misaligned", "journaled",
      "realtime", "unsupported", "file_system", "changed",  "malformed"};
  return names[static_cast<std::size_t>(rule)];
}

namespace detail {
namespace {

// FIEMAP_EXTENT_SHARED and the encryption bit are younger than some headers that this is built with.
constexpr std::uint32_t kLast = 0x0001;
constexpr std::uint32_t kUnknownPlace = 0x0002;
constexpr std::uint32_t kDelayedPlace = 0x0004;
constexpr std::uint32_t kEncodedData = 0x0008;
constexpr std::uint32_t kEncryptedData = 0x0080;
constexpr std::uint32_t kNotAligned = 0x0100;
constexpr std::uint32_t kInlineData = 0x0200;
constexpr std::uint32_t kTailData = 0x0400;
constexpr std::uint32_t kUnwrittenBlocks = 0x0800;
constexpr std::uint32_t kMerged = 0x1000;  // of a file that maps block by block; says nothing bad
constexpr std::uint32_t kSharedBlocks = 0x2000;

static_assert(sizeof(fiemap) == 32 && sizeof(fiemap_extent) == 56);

std::string describe(const Extent& extent, std::uint32_t flags) {
  std::array<char, 160> text{};
  std::snprintf(text.data(), text.size(), "the extent at byte %llu (physical %llu, %llu bytes, flags 0x%x)",
                static_cast<unsigned long long>(extent.logical),
                static_cast<unsigned long long>(extent.physical),
                static_cast<unsigned long long>(extent.length), flags);
  return text.data();
}

[[noreturn]] void refuse(ExtentRule rule, const FiemapRecord& record, const char* why) {
  throw ExtentRefused(rule,
                      std::string(name_of(rule)) + ": " + describe(record.extent, record.flags) + " " + why,
                      record.extent, record.flags);
}

bool wraps(std::uint64_t begin, std::uint64_t length) { return length > UINT64_MAX - begin; }

// The first that applies: a record often carries several, such as "inline" with "not aligned".
void require_plain(const FiemapRecord& record) {
  struct Refusal {
    std::uint32_t flag;
    ExtentRule rule;
    const char* why;
  };
  constexpr std::array<Refusal, 10> refusals{{
      {kInlineData, ExtentRule::kInline, "lies inside the inode"},
      {kTailData, ExtentRule::kInline, "shares its block with other files' ends"},
      {kEncodedData, ExtentRule::kEncoded, "is compressed or encrypted"},
      {kEncryptedData, ExtentRule::kEncoded, "is encrypted"},
      {kDelayedPlace, ExtentRule::kDelayed, "has no place yet; sync the file"},
      {kUnknownPlace, ExtentRule::kUnknown, "is where the file system does not say"},
      {kUnwrittenBlocks, ExtentRule::kUnwritten, "was never written; write it once"},
      {kSharedBlocks, ExtentRule::kShared, "belongs to another file too; copy the file without reflinks"},
      {kNotAligned, ExtentRule::kMisaligned, "is not on block boundaries"},
      {~(kLast | kMerged), ExtentRule::kUnknown, "has a flag that is not known here"},
  }};
  for (const Refusal& refusal : refusals) {
    if ((record.flags & refusal.flag) != 0) {
      refuse(refusal.rule, record, refusal.why);
    }
  }
  const Extent& extent = record.extent;
  if ((extent.logical | extent.physical | extent.length) % kIoAlignment != 0) {
    refuse(ExtentRule::kMisaligned, record, "is not on multiples of 4096 bytes");
  }
}

}  // namespace

std::vector<FiemapRecord> parse_fiemap(std::span<const std::byte> reply) {
  const auto malformed = [](const std::string& what) {
    throw ExtentRefused(ExtentRule::kMalformed, "malformed: FIEMAP answered " + what);
  };
  fiemap header{};
  if (reply.size() < sizeof header) {
    malformed(std::to_string(reply.size()) + " bytes, less than its header");
  }
  std::memcpy(&header, reply.data(), sizeof header);
  if (header.fm_mapped_extents > (reply.size() - sizeof header) / sizeof(fiemap_extent)) {
    malformed(std::to_string(header.fm_mapped_extents) + " extents, more than it had room for");
  }
  std::vector<FiemapRecord> records;
  records.reserve(header.fm_mapped_extents);
  std::uint64_t end = 0;
  for (std::uint32_t i = 0; i < header.fm_mapped_extents; ++i) {
    fiemap_extent entry{};
    std::memcpy(&entry, reply.data() + sizeof header + i * sizeof entry, sizeof entry);
    const FiemapRecord record{{entry.fe_logical, entry.fe_physical, entry.fe_length}, entry.fe_flags};
    if (entry.fe_length == 0 || wraps(entry.fe_logical, entry.fe_length) ||
        wraps(entry.fe_physical, entry.fe_length) || entry.fe_logical < end) {
      refuse(ExtentRule::kMalformed, record, "is empty, overlaps the one before or ends beyond 2^64");
    }
    end = entry.fe_logical + entry.fe_length;
    records.push_back(record);
  }
  return records;
}

ExtentProof::ExtentProof(std::uint64_t file_size) : needed_(0) {
  if (file_size == 0) {
    throw ExtentRefused(ExtentRule::kEmpty, "empty: the file has no bytes");
  }
  if (file_size > UINT64_MAX - kIoAlignment) {
    throw ExtentRefused(ExtentRule::kMalformed,
                        "malformed: a file of " + std::to_string(file_size) + " bytes");
  }
  needed_ = (file_size + kIoAlignment - 1) / kIoAlignment * kIoAlignment;
}

void ExtentProof::add(const FiemapRecord& record) {
  if (covered()) {
    return;  // blocks beyond the end of the file are nobody's business
  }
  if (record.extent.logical > end_) {
    refuse(ExtentRule::kHole, record,
           ("comes after a hole that begins at byte " + std::to_string(end_)).c_str());
  }
  if (record.extent.logical < end_) {
    refuse(ExtentRule::kMalformed, record, "overlaps the one before");
  }
  require_plain(record);
  Extent extent = record.extent;
  extent.length = std::min(extent.length, needed_ - end_);
  end_ += extent.length;
  if (!extents_.empty() && extents_.back().physical + extents_.back().length == extent.physical) {
    extents_.back().length += extent.length;
    return;
  }
  if (extents_.size() == kMaxExtents) {
    refuse(ExtentRule::kTooMany, record, "is the 125th, and 124 are possible; copy the file to a new one");
  }
  extents_.push_back(extent);
}

std::vector<Extent> ExtentProof::finish() && {
  if (!covered()) {
    throw ExtentRefused(ExtentRule::kNotCovered, "not_covered: the extents end at byte " +
                                                     std::to_string(end_) + ", the file at " +
                                                     std::to_string(needed_));
  }
  return std::move(extents_);
}

}  // namespace detail
}  // namespace tutti::runtime
