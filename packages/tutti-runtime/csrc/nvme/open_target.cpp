// SPDX-License-Identifier: Apache-2.0
#include "open_target.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "tutti/runtime/config.hpp"
#include "tutti/runtime/detail/open_file.hpp"
#include "tutti/runtime/error.hpp"
#include "tutti/runtime/extents.hpp"
#include "tutti/runtime/io.hpp"

namespace tutti::runtime::nvme {
namespace {

std::uint64_t largest_command(const DriveFacts& facts, const NamespaceIdentity& home) {
  const std::uint64_t by_count = std::uint64_t{kMaxBlocksPerCommand} << home.block_shift;
  return std::min(facts.max_command_bytes, by_count);
}

/// A format that this driver can move: whole blocks, nothing beside them.
void require_plain_format(const std::string& where, const NamespaceIdentity& home) {
  if (home.metadata_bytes != 0 || home.protection != 0) {
    throw SystemError(ENOTSUP, where + ": blocks with metadata (" + std::to_string(home.metadata_bytes) +
                                   " bytes) or end-to-end protection; format the namespace without");
  }
  if (home.block_shift < 9 || home.block_shift > 12) {
    throw SystemError(ENOTSUP, where + ": blocks of 2^" + std::to_string(home.block_shift) +
                                   " bytes; 512 to 4096 are supported");
  }
}

/// Blocks that the owner of the controller did not give to this process are refused before a command is made.
void require_given(const std::string& where, const DriveFacts& facts, std::uint32_t nsid,
                   const std::vector<BlockExtent>& extents) {
  const std::vector<LbaRange>& ranges = facts.transport.ranges;
  for (const BlockExtent& extent : extents) {
    const bool given = std::any_of(ranges.begin(), ranges.end(), [&](const LbaRange& range) {
      return range.nsid == nsid && extent.lba >= range.first && extent.blocks <= range.blocks &&
             extent.lba - range.first <= range.blocks - extent.blocks;
    });
    if (!ranges.empty() && !given) {
      throw SystemError(EACCES, where + ": blocks " + std::to_string(extent.lba) + " to " +
                                    std::to_string(extent.lba + extent.blocks - 1) + " are not those that " +
                                    facts.transport.broker +
                                    " gives to this process; its status tells the ranges");
    }
  }
}

std::unique_ptr<NvmeTarget> open_namespace(std::span<const NamedDrive> drives, const TargetUri& uri,
                                           bool writable) {
  const auto found = std::find_if(drives.begin(), drives.end(),
                                  [&](const NamedDrive& each) { return each.name == uri.path; });
  const std::string where = "nvme://" + uri.path + "/" + std::to_string(uri.nsid);
  if (found == drives.end()) {
    std::string known;
    for (const NamedDrive& each : drives) {
      known += (known.empty() ? "" : ", ") + each.name;
    }
    throw SystemError(ENOENT, where + ": this runtime has no such controller (it has: " + known + ")");
  }
  const DriveFacts& facts = found->drive->facts();
  if (!uri.broker.empty() && uri.broker != facts.transport.broker) {
    throw InvalidUri("target '" + where + "': broker=" + uri.broker + " is not where this runtime has '" +
                     uri.path + "' from (" +
                     (facts.transport.broker.empty() ? "it drives it itself" : facts.transport.broker) + ")");
  }
  const NamespaceIdentity* const home = facts.find(uri.nsid);
  if (home == nullptr) {
    throw SystemError(ENOENT, where + ": the controller has no such active namespace");
  }
  require_plain_format(where, *home);
  const std::uint64_t held = home->bytes() / kIoAlignment * kIoAlignment;
  if (uri.offset >= held || uri.size > held - uri.offset) {
    throw InvalidUri("target '" + where + "': offset=" + std::to_string(uri.offset) +
                     " and size=" + std::to_string(uri.size) + " end beyond the namespace, which has " +
                     std::to_string(held) + " bytes");
  }
  const std::uint64_t size = uri.size != 0 ? uri.size : held - uri.offset;
  NvmeTarget::Facts target;
  target.kind = "nvme";
  target.path = uri.path + "/" + std::to_string(uri.nsid);
  target.drive = static_cast<std::uint32_t>(found - drives.begin());
  target.offset = uri.offset;
  target.inode = uri.nsid;
  std::vector<BlockExtent> blocks{{0, uri.offset >> home->block_shift, size >> home->block_shift}};
  require_given(where, facts, uri.nsid, blocks);
  return std::make_unique<NvmeTarget>(size, writable, *home, largest_command(facts, *home), std::move(blocks),
                                      std::move(target));
}

/// Holds the file, so that its blocks stay its own when its last name goes.
class HeldFile {
 public:
  HeldFile(const std::string& path, bool writable) {
    const int mode = (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
    fd_ = detail::open_no_follow(path, mode, NoFollow::kLast);
    if (fd_ < 0) {
      throw SystemError(-fd_, std::string("cannot open the file: ") + std::strerror(-fd_), path);
    }
  }
  ~HeldFile() {
    if (fd_ >= 0) {
      ::close(fd_);
    }
  }
  HeldFile(const HeldFile&) = delete;
  HeldFile& operator=(const HeldFile&) = delete;

  [[nodiscard]] int fd() const noexcept { return fd_; }
  [[nodiscard]] int release() noexcept { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

struct Home {
  std::uint32_t drive = 0;
  const BlockDevice* device = nullptr;
  const NamespaceIdentity* space = nullptr;
};

Home find_home(std::span<const NamedDrive> drives, dev_t number, const std::string& path) {
  for (std::uint32_t i = 0; i < drives.size(); ++i) {
    for (const BlockDevice& device : drives[i].block_devices) {
      if (device.major == major(number) && device.minor == minor(number)) {
        return {i, &device, drives[i].drive->facts().find(device.nsid)};
      }
    }
  }
  throw SystemError(EXDEV,
                    "the file is on block device " + std::to_string(major(number)) + ":" +
                        std::to_string(minor(number)) +
                        ", which no controller of this runtime is said to have (block_devices)",
                    path);
}

std::vector<BlockExtent> to_blocks(const std::vector<Extent>& extents, const Home& home,
                                   const std::string& path) {
  const std::uint64_t block = std::uint64_t{1} << home.space->block_shift;
  std::vector<BlockExtent> blocks;
  for (const Extent& extent : extents) {
    const std::uint64_t place = home.device->offset + extent.physical;
    if (place % block != 0 || extent.length > home.space->bytes() ||
        place > home.space->bytes() - extent.length) {
      throw SystemError(ERANGE,
                        "an extent of the file at byte " + std::to_string(place) +
                            " is not on whole blocks of the namespace; check offset in block_devices",
                        path);
    }
    blocks.push_back({extent.logical / block, place / block, extent.length / block});
  }
  return blocks;
}

std::unique_ptr<NvmeTarget> open_file(std::span<const NamedDrive> drives, const TargetUri& uri,
                                      bool writable) {
  HeldFile file(uri.path, writable);
  struct stat info{};
  if (::fstat(file.fd(), &info) != 0) {
    throw SystemError(errno, "cannot look at the file", uri.path);
  }
  const Home home = find_home(drives, info.st_dev, uri.path);
  if (home.space == nullptr) {
    throw SystemError(ENOENT,
                      "block_devices names namespace " + std::to_string(home.device->nsid) +
                          ", which the controller does not have",
                      uri.path);
  }
  require_plain_format(uri.path, *home.space);
  const ExtentMap map = resolve_extents(uri.path, true);
  if (map.signature.device != info.st_dev || map.signature.inode != info.st_ino) {
    throw SystemError(ESTALE, "another file took the name while it was opened", uri.path);
  }
  // The page cache does not see what goes around it; at least nothing old is served from it.
  ::posix_fadvise(file.fd(), 0, 0, POSIX_FADV_DONTNEED);
  std::vector<BlockExtent> blocks = to_blocks(map.extents, home, uri.path);
  require_given(uri.path, drives[home.drive].drive->facts(), home.space->nsid, blocks);
  NvmeTarget::Facts target;
  target.kind = "file";
  target.path = uri.path;
  target.drive = home.drive;
  target.inode = info.st_ino;
  const std::uint64_t most = largest_command(drives[home.drive].drive->facts(), *home.space);
  target.descriptor = file.release();
  return std::make_unique<NvmeTarget>(map.signature.size, writable, *home.space, most, std::move(blocks),
                                      std::move(target));
}

}  // namespace

std::unique_ptr<NvmeTarget> open_target(std::span<const NamedDrive> drives, const TargetUri& uri,
                                        bool writable) {
  if (uri.scheme == Scheme::kNvme) {
    return open_namespace(drives, uri, writable);
  }
  if (uri.scheme == Scheme::kFile) {
    return open_file(drives, uri, writable);
  }
  throw InvalidUri("target '" + uri.path +
                   "': an NVMe runtime opens nvme://name/nsid, file:///path and striped://name");
}

}  // namespace tutti::runtime::nvme
