// SPDX-License-Identifier: Apache-2.0
#include "soft_data.hpp"

#include <algorithm>
#include <cstring>

#include "tutti/runtime/nvme/core/completion.hpp"

namespace tutti::runtime::nvme::soft {
namespace {

// More than a transfer of 65536 blocks needs. Whoever writes lists may be another process: one that runs in a
// circle must end too.
constexpr std::uint32_t kMostDescriptors = 1U << 20;

std::string hex(std::uint64_t value) {
  constexpr const char* digits = "0123456789abcdef";
  std::string text = "0x";
  for (int shift = 60; shift >= 0; shift -= 4) {
    const auto digit = (value >> shift) & 0xfU;
    if (digit != 0 || text.size() > 2 || shift == 0) {
      text.push_back(digits[digit]);
    }
  }
  return text;
}

class Resolver {
 public:
  Resolver(Windows& windows, DataPieces& out) : windows_(windows), out_(out) {}

  void prp(const DataPointer& pointer, std::uint64_t length, std::uint64_t page) {
    if (pointer.low % 4 != 0) {
      fail(kStatusInvalidPrpOffset, "PRP1 is not dword-aligned", pointer.low);
      return;
    }
    const std::uint64_t first = std::min(length, page - pointer.low % page);
    add(pointer.low, first);
    const std::uint64_t left = length - first;
    if (left == 0) {
      return;
    }
    if (left <= page) {
      entry(pointer.high, left, page);
    } else {
      list(pointer.high, left, page);
    }
  }

  void sgl(const DataPointer& pointer, std::uint64_t length) {
    SglDescriptor segment = sgl_of(pointer);
    std::uint64_t total = 0;
    if (segment.identifier == kSglDataBlock) {
      total = data_block(segment);
    } else {
      while (good() && walk_segment(segment, total)) {
      }
    }
    if (good() && total != length) {
      fail(kStatusSglDataLength, "an SGL describes another length than the command", total);
    }
  }

 private:
  [[nodiscard]] bool good() const noexcept { return out_.status == 0; }

  void fail(std::uint16_t status, const char* what, std::uint64_t value) {
    if (good()) {
      out_.status = status;
      out_.violation = std::string(what) + ": " + hex(value);
    }
  }

  void count_one(std::uint16_t status, std::uint64_t at) {
    if (++seen_ > kMostDescriptors) {
      fail(status, "a list without an end", at);
    }
  }

  void add(std::uint64_t iova, std::uint64_t size) {
    std::byte* const memory = windows_.find(iova, size);
    if (memory == nullptr) {
      fail(kStatusDataTransferError, "data outside of every window", iova);
    } else if (!out_.pieces.empty() && windows_.found_on_device() != out_.on_device) {
      fail(kStatusDataTransferError, "data of one command in memory of the host and of a CUDA device", iova);
    } else if (!out_.pieces.empty() && out_.pieces.back().data() + out_.pieces.back().size() == memory) {
      out_.pieces.back() = {out_.pieces.back().data(), out_.pieces.back().size() + size};
    } else {
      out_.on_device = windows_.found_on_device();
      out_.pieces.emplace_back(memory, size);
    }
  }

  void entry(std::uint64_t iova, std::uint64_t size, std::uint64_t page) {
    if (iova % page != 0) {
      fail(kStatusInvalidPrpOffset, "a PRP entry after the first is not page-aligned", iova);
    } else {
      add(iova, size);
    }
  }

  void list(std::uint64_t at, std::uint64_t left, std::uint64_t page) {
    if (at % 8 != 0) {
      fail(kStatusInvalidPrpOffset, "a PRP list is not qword-aligned", at);
    }
    while (good() && left > 0) {
      count_one(kStatusInvalidPrpOffset, at);
      const std::byte* const place = windows_.find(at, 8);
      if (place == nullptr || windows_.found_on_device()) {
        fail(kStatusDataTransferError, "a PRP list outside of every window", at);
        return;
      }
      std::uint64_t value = 0;
      std::memcpy(&value, place, sizeof value);
      if (at % page == page - 8 && left > page) {
        if (value % page != 0) {
          fail(kStatusInvalidPrpOffset, "a chained PRP list is not page-aligned", value);
        }
        at = value;
        continue;
      }
      const std::uint64_t part = std::min(left, page);
      entry(value, part, page);
      left -= part;
      at += 8;
    }
  }

  std::uint64_t data_block(const SglDescriptor& block) {
    if ((block.reserved[0] | block.reserved[1] | block.reserved[2]) != 0) {
      fail(kStatusInvalidSglSegment, "reserved bytes of an SGL descriptor are set", block.address);
    }
    if (block.length != 0) {
      add(block.address, block.length);
    }
    return block.length;
  }

  /// True while another segment follows, which `segment` then is.
  bool walk_segment(SglDescriptor& segment, std::uint64_t& total) {
    const bool last = segment.identifier == kSglLastSegment;
    if (!last && segment.identifier != kSglSegment) {
      fail(kStatusSglType, "an SGL descriptor of unknown type", segment.identifier);
      return false;
    }
    if (segment.length == 0 || segment.length % sizeof(SglDescriptor) != 0) {
      fail(kStatusInvalidSglSegment, "an SGL segment's length is no multiple of 16", segment.length);
      return false;
    }
    const std::byte* const place = windows_.find(segment.address, segment.length);
    if (place == nullptr || windows_.found_on_device()) {
      fail(kStatusDataTransferError, "an SGL segment outside of every window", segment.address);
      return false;
    }
    const std::uint32_t count = segment.length / sizeof(SglDescriptor);
    for (std::uint32_t i = 0; good() && i < count; ++i) {
      count_one(kStatusInvalidSglCount, segment.address);
      SglDescriptor next{};
      std::memcpy(&next, place + i * sizeof(SglDescriptor), sizeof next);
      if (next.identifier == kSglDataBlock) {
        total += data_block(next);
        continue;
      }
      if (last || i + 1 != count) {
        fail(kStatusInvalidSglSegment, "a segment descriptor where none may be", next.address);
        return false;
      }
      segment = next;
      return true;
    }
    if (good() && !last) {
      fail(kStatusInvalidSglSegment, "a segment that is not the last does not end with another", 0);
    }
    return false;
  }

  Windows& windows_;
  DataPieces& out_;
  std::uint32_t seen_ = 0;  ///< entries of lists
};

}  // namespace

void resolve(Windows& windows, const DataPointer& pointer, std::uint64_t length, std::uint64_t page, bool sgl,
             DataPieces& out) {
  out.pieces.clear();
  out.status = 0;
  Resolver resolver(windows, out);
  if (pointer.psdt == kPsdtPrp) {
    resolver.prp(pointer, length, page);
  } else if (pointer.psdt == kPsdtSgl && sgl) {
    resolver.sgl(pointer, length);
  } else {
    out.status = kStatusInvalidField;
    out.violation = "PSDT " + std::to_string(pointer.psdt) + " is not supported";
  }
}

}  // namespace tutti::runtime::nvme::soft
