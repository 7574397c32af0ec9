// SPDX-License-Identifier: Apache-2.0
#include "machine.hpp"

#include <map>

#include "tutti/runtime/error.hpp"

namespace tutti::runtime::nvme::qtest {
namespace {

// Below lie what a PC keeps for its display and its firmware.
constexpr std::uint64_t kFirst = 1U << 20U;
// Above, a q35 machine has no memory below 4 GiB, and an address is not an offset any more.
constexpr std::uint64_t kMost = std::uint64_t{2} << 30U;
constexpr std::uint64_t kLeast = 8U << 20U;

}  // namespace

Machine::Machine(const std::string& socket, const std::string& ram)
    : client_(socket), ram_path_(ram), ram_(ram) {
  if (ram_.size() < kLeast || ram_.size() > kMost) {
    throw InvalidArgument("ram='" + ram + "' has " + std::to_string(ram_.size()) +
                          " bytes: between 8 MiB and 2 GiB are needed, for a bus address to be an offset");
  }
  memory_.add(kFirst, windows_begin() - kFirst);
}

std::shared_ptr<Machine> Machine::of(const std::string& socket, const std::string& ram) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<Machine>> machines;
  std::lock_guard lock(mutex);
  if (auto known = machines[socket].lock()) {
    if (known->ram_path_ != ram) {
      throw InvalidArgument("ram='" + ram + "' is not '" + known->ram_path_ +
                            "', which the machine of this socket was opened with");
    }
    return known;
  }
  auto made = std::make_shared<Machine>(socket, ram);
  machines[socket] = made;
  return made;
}

void Machine::take_slot(std::uint32_t slot) {
  std::lock_guard lock(mutex_);
  if (!slots_.insert(slot).second) {
    throw InvalidArgument("slot=" + std::to_string(slot) + " has an owner in this process already");
  }
}

void Machine::leave_slot(std::uint32_t slot) noexcept {
  std::lock_guard lock(mutex_);
  slots_.erase(slot);
}

}  // namespace tutti::runtime::nvme::qtest
