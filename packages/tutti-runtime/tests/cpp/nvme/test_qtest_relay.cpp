// SPDX-License-Identifier: Apache-2.0
// Stores to doorbell words reach the device, in order, also the first one of a queue that begins again.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <thread>
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
  std::uint32_t* word = relay.begin(offset);
  for (std::uint32_t value = 0; value < 300; ++value) {
    ring_doorbell(word, value % 64);
    device.wait_for(offset, value + 1);
    CHECK(device.written(offset).back() == value % 64);
  }
  CHECK(device.written(offset).size() == 300);
}

void a_queue_that_begins_again_rings_its_first_value(qtest::DoorbellRelay& relay, Device& device) {
  const std::uint32_t offset = cq_head_doorbell(7, 4);
  std::uint32_t* word = relay.begin(offset);
  ring_doorbell(word, 1);
  device.wait_for(offset, 1);
  ring_doorbell(relay.begin(sq_tail_doorbell(7, 4)), 5);
  device.wait_for(sq_tail_doorbell(7, 4), 1);
  CHECK(device.written(offset).size() == 1);
  word = relay.begin(offset);
  ring_doorbell(word, 1);
  device.wait_for(offset, 2);
  CHECK((device.written(offset) == std::vector<std::uint32_t>{1, 1}));
}

/// The word is whose queue it is: a store of a GPU that comes at the same time must not be lost.
void a_word_is_only_read(qtest::DoorbellRelay& relay, Device& device) {
  const std::uint32_t offset = sq_tail_doorbell(9, 4);
  std::uint32_t* const word = relay.begin(offset);
  ring_doorbell(word, 6);
  device.wait_for(offset, 1);
  relay.flush();
  CHECK(load_acquire(word) == 6);
  CHECK(device.written(offset).size() == 1);
}

void what_an_earlier_queue_left_rings_for_nobody(qtest::DoorbellRelay& relay, Device& device) {
  const std::uint32_t offset = sq_tail_doorbell(10, 4);
  ring_doorbell(relay.begin(offset), 6);
  device.wait_for(offset, 1);
  static_cast<void>(relay.begin(offset));
  relay.flush();
  CHECK(device.written(offset).size() == 1);
}

/// Stores of another thread, without a pause: each one is told or a later one is, and the last one always.
void rings_without_a_pause_end_with_the_last(qtest::DoorbellRelay& relay, Device& device) {
  const std::uint32_t offset = sq_tail_doorbell(11, 4);
  std::uint32_t* const word = relay.begin(offset);
  constexpr std::uint32_t rings = 200000;
  std::thread gpu([word] {
    for (std::uint32_t value = 1; value <= rings; ++value) {
      ring_doorbell(word, value);
    }
  });
  gpu.join();
  relay.flush();
  const std::vector<std::uint32_t> written = device.written(offset);
  CHECK(!written.empty() && written.back() == rings);
  CHECK(std::is_sorted(written.begin(), written.end()));
}

void what_is_no_doorbell_has_no_word(qtest::DoorbellRelay& relay) {
  CHECK(relay.begin(kCc) == nullptr);
  CHECK(relay.begin(kDoorbells + 2) == nullptr);
  CHECK(relay.begin(kDoorbells + 4096) == nullptr);
  CHECK(relay.begin(kDoorbells + 4092) != nullptr);
}

}  // namespace

int main() {
  Device device;
  {
    qtest::DoorbellRelay relay(
        [&](std::uint32_t offset, std::uint32_t value) { device.write(offset, value); });
    stores_are_forwarded(relay, device);
    a_queue_that_begins_again_rings_its_first_value(relay, device);
    a_word_is_only_read(relay, device);
    what_an_earlier_queue_left_rings_for_nobody(relay, device);
    rings_without_a_pause_end_with_the_last(relay, device);
    what_is_no_doorbell_has_no_word(relay);
  }
  return 0;
}
