// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tutti/runtime/data_path.hpp"
#include "tutti/runtime/nvme/core/split.hpp"
#include "tutti/runtime/nvme/identify.hpp"

namespace tutti::runtime::nvme {

/// Blocks of one namespace: a slice of it, or those of a file.
class NvmeTarget final : public Target {
 public:
  struct Facts {
    std::string kind;  ///< "nvme", or "file"
    std::string path;  ///< "disk0/1", or the file's
    std::uint32_t drive = 0;
    std::uint64_t offset = 0;  ///< of a slice, in bytes
    std::uint64_t inode = 0;
    int descriptor = -1;  ///< keeps a file's blocks from going to another one; owned
  };

  NvmeTarget(std::uint64_t size, bool writable, const NamespaceIdentity& home, std::uint64_t max_bytes,
             std::vector<BlockExtent> extents, Facts facts);
  ~NvmeTarget() override;

  [[nodiscard]] TargetInfo info() const override;
  [[nodiscard]] std::uint32_t drive() const noexcept { return facts_.drive; }
  [[nodiscard]] std::uint32_t nsid() const noexcept { return nsid_; }
  [[nodiscard]] const ShardPlace& place() const noexcept { return place_; }
  /// Its number in the tables of a device that submits, as long as the target lives; null: it is in none.
  void lease(std::shared_ptr<const std::uint32_t> slot) noexcept { lease_ = std::move(slot); }
  [[nodiscard]] const std::uint32_t* leased() const noexcept { return lease_.get(); }

 private:
  const std::uint32_t nsid_;
  const std::vector<BlockExtent> extents_;
  const Facts facts_;
  ShardPlace place_;
  std::shared_ptr<const std::uint32_t> lease_;
};

}  // namespace tutti::runtime::nvme
