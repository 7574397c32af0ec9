// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "tutti/runtime/detail/fiemap.hpp"
#include "tutti/runtime/detail/open_file.hpp"
#include "tutti/runtime/extents.hpp"

namespace tutti::runtime {
namespace {

using detail::ExtentProof;

constexpr std::uint32_t kRecordsPerCall = 512;
// A file in more pieces has no 124 runs either, but proving that must end.
constexpr std::uint32_t kMaxCalls = 64;
constexpr int kTries = 3;

constexpr long kXfsMagic = 0x58465342;            // linux/magic.h of newer kernels
constexpr std::uint32_t kEncryptedFile = 0x800;   // FS_ENCRYPT_FL
constexpr std::uint32_t kJournaledFile = 0x4000;  // FS_JOURNAL_DATA_FL
constexpr std::uint32_t kRealtimeFile = 0x1;      // FS_XFLAG_REALTIME

class File {
 public:
  explicit File(const std::string& path) : path_(path) {
    fd_ = detail::open_no_follow(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, NoFollow::kLast);
    if (fd_ < 0) {
      fail(-fd_, "cannot open the file");
    }
  }
  ~File() { ::close(fd_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  [[nodiscard]] int fd() const noexcept { return fd_; }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

  [[noreturn]] void fail(int error, const char* what) const {
    throw SystemError(error, std::string(what) + ": " + std::strerror(error), path_);
  }

  [[nodiscard]] struct stat look() const {
    struct stat info{};
    if (::fstat(fd_, &info) != 0) {
      fail(errno, "cannot look at the file");
    }
    if (!S_ISREG(info.st_mode)) {
      throw SystemError(EINVAL, "only a regular file has extents", path_);
    }
    return info;
  }

 private:
  const std::string path_;
  int fd_ = -1;
};

std::int64_t nanoseconds(const timespec& time) {
  return time.tv_sec * std::int64_t{1000000000} + time.tv_nsec;
}

std::uint64_t hash_of(const std::vector<Extent>& extents) noexcept {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const Extent& extent : extents) {
    for (const std::uint64_t word : {extent.logical, extent.physical, extent.length}) {
      for (int shift = 0; shift < 64; shift += 8) {
        hash = (hash ^ ((word >> shift) & 0xffU)) * 0x100000001b3U;
      }
    }
  }
  return hash;
}

ExtentSignature sign(const File& file) {
  const struct stat info = file.look();
  ExtentSignature signature;
  signature.device = info.st_dev;
  signature.inode = info.st_ino;
  signature.generation = detail::identity_of(file.fd(), info).generation;
  signature.size = static_cast<std::uint64_t>(info.st_size);
  signature.mtime = nanoseconds(info.st_mtim);
  signature.ctime = nanoseconds(info.st_ctim);
  return signature;
}

std::vector<Extent> ask(const File& file, std::uint64_t size) {
  ExtentProof proof(size);
  std::vector<std::byte> buffer(sizeof(fiemap) + kRecordsPerCall * sizeof(fiemap_extent));
  for (std::uint32_t call = 0; call < kMaxCalls && !proof.covered(); ++call) {
    fiemap request{};
    request.fm_start = proof.end();
    request.fm_length = size - proof.end();
    request.fm_extent_count = kRecordsPerCall;
    std::memcpy(buffer.data(), &request, sizeof request);
    if (::ioctl(file.fd(), FS_IOC_FIEMAP, buffer.data()) != 0) {
      if (errno == EOPNOTSUPP || errno == ENOTTY) {
        throw ExtentRefused(ExtentRule::kUnsupported, "unsupported: the file system cannot tell extents");
      }
      file.fail(errno, "cannot ask for the file's extents");
    }
    const auto records = detail::parse_fiemap(buffer);
    if (records.empty()) {
      break;
    }
    for (const detail::FiemapRecord& record : records) {
      proof.add(record);
    }
  }
  return std::move(proof).finish();
}

/// Whether the file system of `device` is mounted with data=journal. Field 3 of a line is the device, the
/// super block's options are the last: proc_pid_mountinfo(5).
bool mounted_with_journaled_data(dev_t device) {
  const std::string wanted = std::to_string(major(device)) + ":" + std::to_string(minor(device));
  std::ifstream mounts("/proc/self/mountinfo");
  std::string line;
  while (std::getline(mounts, line)) {
    const std::size_t first = line.find(' ');
    const std::size_t second = line.find(' ', first + 1);
    const std::size_t third = line.find(' ', second + 1);
    if (third != std::string::npos && line.compare(second + 1, third - second - 1, wanted) == 0 &&
        line.find("data=journal") != std::string::npos) {
      return true;
    }
  }
  return false;
}

// What no extent shows. Last, because a reason that lies in the file itself helps more.
void require_plain_home(const File& file) {
  struct statfs system{};
  if (::fstatfs(file.fd(), &system) != 0) {
    file.fail(errno, "cannot look at the file system");
  }
  const bool is_xfs = system.f_type == kXfsMagic;
  if (!is_xfs && system.f_type != EXT4_SUPER_MAGIC) {
    throw ExtentRefused(ExtentRule::kFileSystem,
                        "file_system: only ext4 and xfs are known to tell addresses of one block device");
  }
  long flags[2] = {0, 0};  // the kernel writes an int, although the request's number says long
  std::uint32_t inode_flags = 0;
  if (::ioctl(file.fd(), FS_IOC_GETFLAGS, flags) == 0) {
    std::memcpy(&inode_flags, flags, sizeof inode_flags);
  }
  if ((inode_flags & kEncryptedFile) != 0) {
    throw ExtentRefused(ExtentRule::kEncoded, "encoded: the file is encrypted");
  }
  if ((inode_flags & kJournaledFile) != 0 || (!is_xfs && mounted_with_journaled_data(file.look().st_dev))) {
    throw ExtentRefused(ExtentRule::kJournaled, "journaled: the file's data goes through the journal first");
  }
  fsxattr attributes{};
  if (is_xfs && (::ioctl(file.fd(), FS_IOC_FSGETXATTR, &attributes) != 0 ||
                 (attributes.fsx_xflags & kRealtimeFile) != 0)) {
    throw ExtentRefused(ExtentRule::kRealtime, "realtime: the file is on the file system's realtime device");
  }
}

}  // namespace

ExtentMap resolve_extents(const std::string& path, bool sync) {
  const File file(path);
  static_cast<void>(file.look());
  if (sync && ::fsync(file.fd()) != 0) {
    file.fail(errno, "cannot make the file durable");
  }
  for (int attempt = 0; attempt < kTries; ++attempt) {
    ExtentMap map;
    map.signature = sign(file);
    map.extents = ask(file, map.signature.size);
    // Several calls are several moments: nothing may have happened between the first and now.
    if (sign(file) != map.signature || ask(file, map.signature.size) != map.extents) {
      continue;
    }
    require_plain_home(file);
    map.signature.extents_hash = hash_of(map.extents);
    return map;
  }
  throw ExtentRefused(ExtentRule::kChanged,
                      "changed: the file changes while it is looked at; stop its writers");
}

}  // namespace tutti::runtime
