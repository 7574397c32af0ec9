// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "../descriptor.hpp"
#include "../mapped_registers.hpp"
#include "group.hpp"

namespace tutti::runtime::nvme::vfio {

/// One device of a group: its configuration space and the registers of its BAR 0.
class Device {
 public:
  /// Resets it, maps BAR 0 and lets it master the bus. @throws SystemError
  Device(std::shared_ptr<Group> group, std::string bdf);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  [[nodiscard]] Group& group() const noexcept { return *group_; }
  [[nodiscard]] const std::shared_ptr<Group>& shared_group() const noexcept { return group_; }
  [[nodiscard]] const std::string& bdf() const noexcept { return bdf_; }
  /// Registers; `size()` bytes of them.
  [[nodiscard]] std::byte* registers() const noexcept { return registers_->address(); }
  [[nodiscard]] std::uint64_t size() const noexcept { return registers_->size(); }

  /// Whether an access has found that they are there no more.
  [[nodiscard]] bool is_gone() const noexcept { return registers_->is_gone(); }

  /// Whether it may reach memory; false, with errno, when that cannot be changed.
  [[nodiscard]] bool set_bus_master(bool on) const noexcept;

 private:
  /// The device's descriptor, and its mark in the group.
  class Opened {
   public:
    Opened(Group& group, const std::string& bdf) : group_(group), bdf_(bdf), fd_(group.open_device(bdf)) {}
    ~Opened() { group_.close_device(bdf_); }
    Opened(const Opened&) = delete;
    Opened& operator=(const Opened&) = delete;

    [[nodiscard]] int get() const noexcept { return fd_.get(); }

   private:
    Group& group_;
    const std::string& bdf_;
    Descriptor fd_;
  };

  void reset() noexcept;
  void map_registers();
  /// Sets or clears bits of the command register; false, with errno, when that fails.
  [[nodiscard]] bool change_command(std::uint16_t set, std::uint16_t clear) const noexcept;

  std::shared_ptr<Group> group_;
  std::string bdf_;
  Opened device_;
  bool can_reset_ = false;
  std::optional<MappedRegisters> registers_;
};

}  // namespace tutti::runtime::nvme::vfio
