// SPDX-License-Identifier: Apache-2.0
#include "device.hpp"

#include <fcntl.h>
#include <linux/vfio.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <utility>

#include "fail.hpp"

namespace tutti::runtime::nvme::vfio {
namespace {

// PCI Local Bus Specification: command register of a function's header, and its bits.
constexpr std::uint64_t kCommand = 0x04;
constexpr std::uint16_t kMemorySpace = 2;
constexpr std::uint16_t kBusMaster = 4;
// Up to the end of the doorbells' first page, without which there is no admin queue.
constexpr std::uint64_t kLeastRegisters = 0x2000;

}  // namespace

Device::Device(std::shared_ptr<Group> group, std::string bdf)
    : group_(std::move(group)), bdf_(std::move(bdf)), device_(*group_, bdf_) {
  vfio_device_info info{};
  info.argsz = sizeof(info);
  if (::ioctl(device_.get(), VFIO_DEVICE_GET_INFO, &info) != 0) {
    fail("cannot ask the device", bdf_);
  }
  can_reset_ = (info.flags & VFIO_DEVICE_FLAGS_RESET) != 0;
  reset();
  if (!change_command(kMemorySpace | kBusMaster, 0)) {
    fail("cannot change the command register", bdf_);
  }
  map_registers();
}

Device::~Device() {
  // No transfer may begin any more once memory is unmapped. That it fails leaves nothing better to do.
  static_cast<void>(change_command(0, kBusMaster));
  reset();
}

void Device::reset() noexcept {
  if (can_reset_) {
    ::ioctl(device_.get(), VFIO_DEVICE_RESET);
  }
}

bool Device::set_bus_master(bool on) const noexcept {
  return on ? change_command(kBusMaster, 0) : change_command(0, kBusMaster);
}

void Device::map_registers() {
  vfio_region_info region{};
  region.argsz = sizeof(region);
  region.index = VFIO_PCI_BAR0_REGION_INDEX;
  if (::ioctl(device_.get(), VFIO_DEVICE_GET_REGION_INFO, &region) != 0) {
    fail("cannot ask for BAR 0", bdf_);
  }
  if ((region.flags & VFIO_REGION_INFO_FLAG_MMAP) == 0 || region.size < kLeastRegisters) {
    throw SystemError(
        ENODEV,
        "BAR 0 has " + std::to_string(region.size) + " bytes and cannot be mapped: no NVMe controller", bdf_);
  }
  try {
    registers_.emplace(device_.get(), region.offset, region.size);
  } catch (const SystemError& error) {
    throw SystemError(error.error_number(), std::string("BAR 0: ") + error.what(), bdf_);
  }
}

bool Device::change_command(std::uint16_t set, std::uint16_t clear) const noexcept {
  vfio_region_info region{};
  region.argsz = sizeof(region);
  region.index = VFIO_PCI_CONFIG_REGION_INDEX;
  if (::ioctl(device_.get(), VFIO_DEVICE_GET_REGION_INFO, &region) != 0) {
    return false;
  }
  const auto offset = static_cast<off_t>(region.offset + kCommand);
  std::uint16_t command = 0;
  if (::pread(device_.get(), &command, sizeof(command), offset) != sizeof(command)) {
    return false;
  }
  command = static_cast<std::uint16_t>((command | set) & ~clear);
  return ::pwrite(device_.get(), &command, sizeof(command), offset) == sizeof(command);
}

}  // namespace tutti::runtime::nvme::vfio
