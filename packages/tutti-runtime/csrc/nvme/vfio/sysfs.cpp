// SPDX-License-Identifier: Apache-2.0
#include "sysfs.hpp"

#include <cerrno>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "tutti/runtime/error.hpp"

namespace tutti::runtime::nvme::vfio {
namespace {

/// The last component of a link's target, empty when there is no such link.
std::string target_of(const std::filesystem::path& link) {
  std::error_code error;
  const auto target = std::filesystem::read_symlink(link, error);
  return error ? std::string() : target.filename().string();
}

/// "0000:01:00.0": domain, bus, device (below 32) and function (below 8) in lower-case hexadecimal.
bool is_bdf(std::string_view text) {
  constexpr std::string_view form = "xxxx:xx:tx.o";  // x: any digit, t: 0 or 1, o: 0 to 7
  constexpr std::string_view digits = "0123456789abcdef";
  if (text.size() != form.size()) {
    return false;
  }
  for (std::size_t i = 0; i < form.size(); ++i) {
    const std::size_t known = form[i] == 'x' ? 16 : (form[i] == 't' ? 2 : (form[i] == 'o' ? 8 : 0));
    const bool fits =
        known != 0 ? digits.substr(0, known).find(text[i]) != std::string_view::npos : text[i] == form[i];
    if (!fits) {
      return false;
    }
  }
  return true;
}

}  // namespace

std::string group_of(const std::string& root, const std::string& bdf) {
  if (!is_bdf(bdf)) {
    throw InvalidArgument("bdf='" + bdf + "' must be like '0000:01:00.0', in lower case");
  }
  const auto folder = std::filesystem::path(root) / "sys/bus/pci/devices" / bdf;
  std::error_code error;
  if (!std::filesystem::exists(folder, error)) {
    throw SystemError(ENODEV, "there is no PCI device " + bdf, folder);
  }
  const std::string group = target_of(folder / "iommu_group");
  if (group.empty()) {
    throw SystemError(
        ENOENT, bdf + " is behind no IOMMU: enable it in the firmware and boot with intel_iommu=on", folder);
  }
  const std::string driver = target_of(folder / "driver");
  if (driver != "vfio-pci") {
    throw SystemError(EBUSY,
                      bdf + " belongs to " + (driver.empty() ? "no driver" : "the driver " + driver) +
                          ": write vfio-pci to its driver_override, unbind it, and write its address to "
                          "/sys/bus/pci/drivers_probe",
                      folder);
  }
  return group;
}

}  // namespace tutti::runtime::nvme::vfio
