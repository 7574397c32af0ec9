// SPDX-License-Identifier: Apache-2.0
// What transports say before there is a device, where the caller's memory lies in a machine's file, and which
// bus addresses are given out.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <string_view>

#include "../check.hpp"
#include "nvme/qtest/shared_file.hpp"
#include "nvme/ranges.hpp"
#include "tutti/runtime/error.hpp"
#include "tutti/runtime/nvme/qtest.hpp"
#include "tutti/runtime/nvme/vfio.hpp"

namespace {

using namespace tutti::runtime;
using namespace tutti::runtime::nvme;
namespace fs = std::filesystem;

constexpr std::uint64_t kPage = 4096;

class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "tutti-bus-XXXXXX").string();
    CHECK(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  [[nodiscard]] const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

int error_of(const VfioOptions& options, std::string_view words) {
  try {
    static_cast<void>(open_vfio(options));
  } catch (const SystemError& error) {
    CHECK(std::string_view(error.what()).find(words) != std::string_view::npos);
    return error.error_number();
  }
  return 0;
}

void vfio_says_what_is_missing() {
  const Folder folder;
  const VfioOptions options{"0000:01:00.0", folder.path().string()};
  const fs::path device = folder.path() / "sys/bus/pci/devices/0000:01:00.0";
  CHECK_THROWS(InvalidArgument, open_vfio({"01:00.0", options.root}));
  CHECK_THROWS(InvalidArgument, open_vfio({"0000:01:00.0/..", options.root}));
  CHECK(error_of(options, "no PCI device") == ENODEV);
  fs::create_directories(device);
  CHECK(error_of(options, "intel_iommu=on") == ENOENT);
  fs::create_symlink("../../../kernel/iommu_groups/7", device / "iommu_group");
  CHECK(error_of(options, "no driver") == EBUSY);
  fs::create_symlink("../../drivers/nvme", device / "driver");
  CHECK(error_of(options, "the driver nvme") == EBUSY);
  fs::remove(device / "driver");
  fs::create_symlink("../../drivers/vfio-pci", device / "driver");
  CHECK(error_of(options, "modprobe vfio-pci") == ENOENT);
}

void qtest_says_what_is_wrong() {
  const Folder folder;
  QtestOptions options;
  options.socket = (folder.path() / "none").string();
  CHECK_THROWS(InvalidArgument, open_qtest(options));
  options.slot = 4;
  CHECK_THROWS(SystemError, open_qtest(options));
  options.peer = "peer";
  CHECK_THROWS(InvalidArgument, open_qtest(options));
}

std::byte* mapped(const fs::path& path, std::uint64_t size, int flags, std::uint64_t offset) {
  const int fd = ::open(path.c_str(), O_RDWR);
  void* made = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, flags, fd, static_cast<off_t>(offset));
  CHECK(made != MAP_FAILED);
  ::close(fd);
  return static_cast<std::byte*>(made);
}

void only_shared_mappings_of_the_file_are_found() {
  const Folder folder;
  for (const char* name : {"ram", "other"}) {
    const int fd = ::open((folder.path() / name).c_str(), O_RDWR | O_CREAT, 0600);
    CHECK(::ftruncate(fd, 16 * kPage) == 0);
    ::close(fd);
  }
  const qtest::SharedFile file((folder.path() / "ram").string());
  CHECK(file.size() == 16 * kPage);
  CHECK(file.offset_of(file.address() + 3, 5) == 3);
  std::byte* window = mapped(folder.path() / "ram", 4 * kPage, MAP_SHARED, 8 * kPage);
  CHECK(file.offset_of(window + kPage, 3 * kPage) == 9 * kPage);
  CHECK(!file.offset_of(mapped(folder.path() / "ram", kPage, MAP_PRIVATE, 0), kPage));
  CHECK(!file.offset_of(mapped(folder.path() / "other", kPage, MAP_SHARED, 0), kPage));
  int local = 0;
  CHECK(!file.offset_of(reinterpret_cast<std::byte*>(&local), 4));
  CHECK_THROWS(SystemError, qtest::SharedFile((folder.path() / "missing").string()));
}

void ranges_are_given_once_and_come_back() {
  std::mt19937_64 random(7);  // NOLINT(bugprone-random-generator-seed): a failure must come again
  FreeRanges ranges;
  ranges.add(0, 1 << 20);
  ranges.add(4 << 20, 1 << 20);
  std::map<std::uint64_t, std::uint64_t> held;
  for (int round = 0; round < 20000; ++round) {
    if (held.empty() || random() % 2 == 0) {
      const std::uint64_t size = (1 + random() % 64) * kPage;
      const std::uint64_t alignment = kPage << (random() % 4);
      try {
        const std::uint64_t begin = ranges.take(size, alignment);
        CHECK(begin % alignment == 0);
        CHECK(begin + size <= 1 << 20 || (begin >= 4 << 20 && begin + size <= 5 << 20));
        const auto next = held.upper_bound(begin);
        CHECK(next == held.end() || begin + size <= next->first);
        CHECK(next == held.begin() || std::prev(next)->first + std::prev(next)->second <= begin);
        held.emplace(begin, size);
      } catch (const SystemError& error) {
        CHECK(error.error_number() == ENOMEM);
      }
    } else {
      auto victim = std::next(held.begin(), static_cast<std::ptrdiff_t>(random() % held.size()));
      ranges.add(victim->first, victim->second);
      held.erase(victim);
    }
  }
  for (const auto& [begin, size] : held) {
    ranges.add(begin, size);
  }
  CHECK(ranges.take(1 << 20, kPage) == 0);
  CHECK(ranges.take(1 << 20, kPage) == 4 << 20);
  CHECK_THROWS(SystemError, ranges.take(kPage, kPage));
}

}  // namespace

int main() {
  vfio_says_what_is_missing();
  qtest_says_what_is_wrong();
  only_shared_mappings_of_the_file_are_found();
  ranges_are_given_once_and_come_back();
  return 0;
}
