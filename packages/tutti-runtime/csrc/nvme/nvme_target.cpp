// SPDX-License-Identifier: Apache-2.0
#include "nvme_target.hpp"

#include <unistd.h>

namespace tutti::runtime::nvme {
namespace {

// No device number of Linux is that large, and no tag of a caller's is that small.
constexpr std::uint64_t kFirstDriveRoot = std::uint64_t{1} << 62;

}  // namespace

NvmeTarget::NvmeTarget(std::uint64_t size, bool writable, const NamespaceIdentity& home,
                       std::uint64_t max_bytes, std::vector<BlockExtent> extents, Facts facts)
    : Target(size, writable), nsid_(home.nsid), extents_(std::move(extents)), facts_(std::move(facts)) {
  set_root(kFirstDriveRoot + facts_.drive);
  place_.extents = {extents_.data(), static_cast<std::uint32_t>(extents_.size())};
  place_.block_shift = home.block_shift;
  place_.max_bytes = max_bytes;
  place_.boundary_blocks = home.boundary_blocks;
}

NvmeTarget::~NvmeTarget() {
  if (facts_.descriptor >= 0) {
    ::close(facts_.descriptor);
  }
}

TargetInfo NvmeTarget::info() const {
  TargetInfo info = Target::info();
  info.kind = facts_.kind;
  info.path = facts_.path;
  info.offset = facts_.offset;
  info.direct = true;
  info.root = root();
  info.inode = facts_.inode;
  return info;
}

}  // namespace tutti::runtime::nvme
