// SPDX-License-Identifier: Apache-2.0
#include "group.hpp"

#include <fcntl.h>
#include <linux/vfio.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <vector>

#include "fail.hpp"

namespace tutti::runtime::nvme::vfio {
namespace {

// Below: addresses that firmware and old devices treat in their own way, and 0, which looks like no address.
constexpr std::uint64_t kFirst = std::uint64_t{16} << 20U;
// A kernel that tells no ranges: below this lies the window of interrupts on x86 (0xfee00000).
constexpr std::uint64_t kAboveInterrupts = std::uint64_t{4} << 30U;
constexpr std::uint64_t kLimit = std::uint64_t{1} << 39U;
constexpr std::uint64_t kHugePage = std::uint64_t{2} << 20U;

/// Bus addresses that are as far from a huge page's begin as the memory is let the IOMMU use its huge pages.
std::uint64_t lead_of(const std::byte* address, std::uint64_t size) {
  return size >= kHugePage ? reinterpret_cast<std::uint64_t>(address) & (kHugePage - 1) : 0;
}

std::uint64_t alignment_of(std::uint64_t size) { return size >= kHugePage ? kHugePage : 4096; }

}  // namespace

Group::Group(const std::string& root, const std::string& number)
    : container_(::open((root + "/dev/vfio/vfio").c_str(), O_RDWR | O_CLOEXEC)),
      group_(::open((root + "/dev/vfio/" + number).c_str(), O_RDWR | O_CLOEXEC)) {
  const std::string path = root + "/dev/vfio/" + number;
  if (container_.get() < 0) {
    fail("cannot open the container", root + "/dev/vfio/vfio", "modprobe vfio-pci");
  }
  if (group_.get() < 0) {
    fail("cannot open the IOMMU group", path, "one process at a time may have it, and needs the right to");
  }
  join_container(path);
  find_ranges();
}

std::shared_ptr<Group> Group::of(const std::string& root, const std::string& number) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<Group>> groups;
  std::lock_guard lock(mutex);
  const std::string key = root + " " + number;
  if (auto known = groups[key].lock()) {
    return known;
  }
  auto made = std::make_shared<Group>(root, number);
  groups[key] = made;
  return made;
}

void Group::join_container(const std::string& path) {
  if (::ioctl(container_.get(), VFIO_GET_API_VERSION) != VFIO_API_VERSION ||
      ::ioctl(container_.get(), VFIO_CHECK_EXTENSION, VFIO_TYPE1v2_IOMMU) != 1) {
    throw SystemError(ENOSYS, "this kernel's vfio has no IOMMU of type 1, version 2", path);
  }
  vfio_group_status status{};
  status.argsz = sizeof(status);
  if (::ioctl(group_.get(), VFIO_GROUP_GET_STATUS, &status) != 0) {
    fail("cannot ask the IOMMU group", path);
  }
  if ((status.flags & VFIO_GROUP_FLAGS_VIABLE) == 0) {
    throw SystemError(EBUSY, "other devices of the IOMMU group are not bound to vfio-pci: bind them all",
                      path);
  }
  int container = container_.get();
  if (::ioctl(group_.get(), VFIO_GROUP_SET_CONTAINER, &container) != 0) {
    fail("cannot put the IOMMU group into a container", path);
  }
  if (::ioctl(container_.get(), VFIO_SET_IOMMU, VFIO_TYPE1v2_IOMMU) != 0) {
    fail("cannot set up the IOMMU", path, "without interrupt remapping the kernel refuses (EPERM)");
  }
}

void Group::find_ranges() {
  vfio_iommu_type1_info head{};
  head.argsz = sizeof(head);
  std::vector<std::byte> bytes(sizeof(head));
  if (::ioctl(container_.get(), VFIO_IOMMU_GET_INFO, &head) == 0 && head.argsz > sizeof(head)) {
    bytes.resize(head.argsz);
  }
  auto* info = reinterpret_cast<vfio_iommu_type1_info*>(bytes.data());
  info->argsz = static_cast<std::uint32_t>(bytes.size());
  const bool told =
      ::ioctl(container_.get(), VFIO_IOMMU_GET_INFO, info) == 0 && (info->flags & VFIO_IOMMU_INFO_CAPS) != 0;
  bool found = false;
  for (std::uint32_t offset = told ? info->cap_offset : 0; offset != 0;) {
    const auto* capability = reinterpret_cast<const vfio_info_cap_header*>(bytes.data() + offset);
    if (capability->id == VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE) {
      const auto* list = reinterpret_cast<const vfio_iommu_type1_info_cap_iova_range*>(capability);
      for (std::uint32_t index = 0; index < list->nr_iovas; ++index) {
        const std::uint64_t begin = std::max<std::uint64_t>(list->iova_ranges[index].start, kFirst);
        const std::uint64_t end = std::min<std::uint64_t>(list->iova_ranges[index].end, kLimit - 1) + 1;
        if (begin < end) {
          ranges_.add(begin, end - begin);
          found = true;
        }
      }
    }
    offset = capability->next;
  }
  if (!found) {
    ranges_.add(kAboveInterrupts, kLimit - kAboveInterrupts);
  }
}

Descriptor Group::open_device(const std::string& bdf) {
  std::lock_guard lock(mutex_);
  if (open_.count(bdf) != 0) {
    throw InvalidArgument("bdf='" + bdf + "' is open in this process already");
  }
  const int fd = ::ioctl(group_.get(), VFIO_GROUP_GET_DEVICE_FD, bdf.c_str());
  if (fd < 0) {
    fail("cannot open " + bdf + " through vfio", bdf);
  }
  open_.insert(bdf);
  return Descriptor(fd);
}

void Group::close_device(const std::string& bdf) noexcept {
  std::lock_guard lock(mutex_);
  open_.erase(bdf);
}

std::uint64_t Group::map(std::byte* address, std::uint64_t size) {
  const std::uint64_t lead = lead_of(address, size);
  const std::uint64_t iova = ranges_.take(lead + size, alignment_of(size)) + lead;
  vfio_iommu_type1_dma_map request{};
  request.argsz = sizeof(request);
  request.flags = VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE;
  request.vaddr = reinterpret_cast<std::uint64_t>(address);
  request.iova = iova;
  request.size = size;
  if (::ioctl(container_.get(), VFIO_IOMMU_MAP_DMA, &request) != 0) {
    const int error = errno;
    ranges_.add(iova - lead, lead + size);
    errno = error;
    fail("cannot map " + std::to_string(size) + " bytes for the device", "",
         error == ENOMEM ? "the memory is pinned: raise RLIMIT_MEMLOCK (ulimit -l)" : "");
  }
  return iova;
}

void Group::unmap(std::uint64_t iova, std::byte* address, std::uint64_t size) noexcept {
  const std::uint64_t lead = lead_of(address, size);
  vfio_iommu_type1_dma_unmap request{};
  request.argsz = sizeof(request);
  request.iova = iova;
  request.size = size;
  if (::ioctl(container_.get(), VFIO_IOMMU_UNMAP_DMA, &request) == 0) {
    ranges_.add(iova - lead, lead + size);
  }
}

}  // namespace tutti::runtime::nvme::vfio
