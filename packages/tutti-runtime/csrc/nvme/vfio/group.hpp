// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "../ranges.hpp"
#include "descriptor.hpp"

namespace tutti::runtime::nvme::vfio {

/// An IOMMU group in a container of its own: the address space that its devices see. Thread-safe.
class Group {
 public:
  Group(const std::string& root, const std::string& number);

  /// The group of a number, shared by all that ask while one of them lives: the kernel opens it once.
  [[nodiscard]] static std::shared_ptr<Group> of(const std::string& root, const std::string& number);

  /// @throws SystemError
  [[nodiscard]] Descriptor open_device(const std::string& bdf) const;

  /// Maps whole pages of this process for the group's devices, which stay pinned until unmap().
  /// @returns the bus address. @throws SystemError; ENOMEM names the limit
  [[nodiscard]] std::uint64_t map(std::byte* address, std::uint64_t size);
  void unmap(std::uint64_t iova, std::byte* address, std::uint64_t size) noexcept;

 private:
  void join_container(const std::string& path);
  /// What the IOMMU can translate, less what interrupts use.
  void find_ranges();

  Descriptor container_;
  Descriptor group_;
  FreeRanges ranges_;
};

}  // namespace tutti::runtime::nvme::vfio
