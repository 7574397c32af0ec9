// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "../descriptor.hpp"
#include "../ranges.hpp"

namespace tutti::runtime::nvme::vfio {

/// An IOMMU group in a container of its own: the address space that its devices see. Thread-safe.
class Group {
 public:
  Group(const std::string& root, const std::string& number);

  /// The group of a number, shared by all that ask while one of them lives: the kernel opens it once.
  [[nodiscard]] static std::shared_ptr<Group> of(const std::string& root, const std::string& number);

  /// @throws SystemError; InvalidArgument when this process has the device open: two drivers would reset it
  /// under each other.
  [[nodiscard]] Descriptor open_device(const std::string& bdf);
  void close_device(const std::string& bdf) noexcept;

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
  std::mutex mutex_;
  std::set<std::string> open_;
};

}  // namespace tutti::runtime::nvme::vfio
