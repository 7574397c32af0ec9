// SPDX-License-Identifier: Apache-2.0
// Stores to doorbell words reach the device, in order, also the first one of a queue that begins again.
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "../check.hpp"
#include "nvme/qtest/relay.hpp"
#include "tutti/runtime/nvme/core/ordered.hpp"
#include "tutti/runtime/nvme/registers.hpp"

namespace {

using namespace tutti::runtime::nvme;

class Device {
 public:
  void write(std::uint32_t offset, std::uint32_t value) {
    std::lock_guard lock(mutex_);
    written_[offset].push_back(value);
    changed_.notify_all();
  }

  void wait_for(std::uint32_t offset, std::size_t writes) {
    std::unique_lock lock(mutex_);
    const auto come = [&] { return written_[offset].size() >= writes; };
    CHECK(changed_.wait_for(lock, std::chrono::seconds(30), come));
  }

  std::vector<std::uint32_t> written(std::uint32_t offset) {
    std::lock_guard lock(mutex_);
    return written_[offset];
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint32_t, std::vector<std::uint32_t>> written_;
};

void stores_are_forwarded(qtest::DoorbellRelay& relay, Device& device) {
  const std::uint32_t offset = sq_tail_doorbell(3, 4);
  std::uint32_t* word = relay.word(offset);
  for (std::uint32_t value = 0; value < 300; ++value) {
    ring_doorbell(word, value % 64);
    device.wait_for(offset, value + 1);
    CHECK(device.written(offset).back() == value % 64);
  }
  CHECK(device.written(offset).size() == 300);
}

void a_queue_that_begins_again_rings_its_first_value(qtest::DoorbellRelay& relay, Device& device) {
  const std::uint32_t offset = cq_head_doorbell(7, 4);
  std::uint32_t* word = relay.word(offset);
  ring_doorbell(word, 1);
  device.wait_for(offset, 1);
  ring_doorbell(relay.word(sq_tail_doorbell(7, 4)), 5);
  device.wait_for(sq_tail_doorbell(7, 4), 1);
  CHECK(device.written(offset).size() == 1);
  ring_doorbell(word, 1);
  device.wait_for(offset, 2);
  CHECK((device.written(offset) == std::vector<std::uint32_t>{1, 1}));
}

void what_is_no_doorbell_has_no_word(qtest::DoorbellRelay& relay) {
  CHECK(relay.word(kCc) == nullptr);
  CHECK(relay.word(kDoorbells + 2) == nullptr);
  CHECK(relay.word(kDoorbells + 4096) == nullptr);
  CHECK(relay.word(kDoorbells + 4092) != nullptr);
}

}  // namespace

int main() {
  Device device;
  {
    qtest::DoorbellRelay relay(
        [&](std::uint32_t offset, std::uint32_t value) { device.write(offset, value); });
    stores_are_forwarded(relay, device);
    a_queue_that_begins_again_rings_its_first_value(relay, device);
    what_is_no_doorbell_has_no_word(relay);
  }
  return 0;
}
