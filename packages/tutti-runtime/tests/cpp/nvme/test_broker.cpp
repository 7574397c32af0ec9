// SPDX-License-Identifier: Apache-2.0
// The owner's side of a broker on a soft controller, without the socket: clients on threads of their own that
// come, do I/O through shared memory, and are removed at any moment.
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "nvme/broker/shared_memory.hpp"
#include "soft_rig.hpp"
#include "tutti/runtime/nvme/broker_host.hpp"
#include "tutti/runtime/nvme/core/ordered.hpp"

namespace {

using namespace soft_rig;

constexpr std::uint64_t kPage = 4096;
constexpr std::uint32_t kDepth = 16;

struct Owner {
  explicit Owner(std::uint32_t queues, double latency = 0) : control(std::make_shared<SoftControl>()) {
    SoftSettings settings = one_namespace();
    settings.max_queues = queues;
    settings.latency = latency;
    settings.timeout_ms = 500;
    BrokerHostOptions options;
    options.queues = queues;
    options.admin_timeout = Duration(0.5);
    host = std::make_unique<BrokerHost>(make_soft_transport(settings, control), options);
  }

  std::shared_ptr<SoftControl> control;
  std::unique_ptr<BrokerHost> host;
};

BrokerClientLimits limits_of(std::uint32_t queues = 1) {
  BrokerClientLimits limits;
  limits.queues = queues;
  limits.window_bytes = kMiB;
  return limits;
}

/// A window of one page: the client's mapping, and where it is on the bus.
struct Page {
  Page(BrokerHost& host, std::uint32_t client) : file(broker::make_memory_file("test", kPage)) {
    memory = SharedMapping(file.get(), 0, kPage, true);
    const BrokerWindow window = host.map(client, file.get(), 0, kPage);
    id = window.id;
    iova = window.runs.front().iova;
  }

  Descriptor file;
  SharedMapping memory;
  std::uint32_t id = 0;
  std::uint64_t iova = 0;
};

Command admin_command(AdminOpcode opcode, std::uint32_t cdw10, std::uint32_t cdw11, std::uint64_t data) {
  Command command{};
  command.opcode = static_cast<std::uint8_t>(opcode);
  command.cdw10 = cdw10;
  command.cdw11 = cdw11;
  command.data_low = data;
  return command;
}

/// A client as it is in its own process: rings and doorbells in shared memory, nothing else.
class Guest {
 public:
  explicit Guest(BrokerHost& host)
      : client_(host.add_client(limits_of())),
        doorbells_(client_.doorbell_file, 0, client_.doorbell_bytes, true),
        state_(client_.state_file, 0, kPage, false),
        sq_(host, client_.id),
        cq_(host, client_.id),
        data_(host, client_.id) {
    const std::uint32_t size = ((kDepth - 1) << 16) | queue();
    CHECK(host.admin(client_.id, admin_command(AdminOpcode::kCreateIoCq, size, 1, cq_.iova)).status == 0);
    const std::uint32_t flags = 1 | (std::uint32_t{queue()} << 16);
    CHECK(host.admin(client_.id, admin_command(AdminOpcode::kCreateIoSq, size, flags, sq_.iova)).status == 0);
  }

  [[nodiscard]] std::uint32_t id() const noexcept { return client_.id; }
  [[nodiscard]] std::uint16_t queue() const noexcept { return client_.queue_ids.front(); }
  [[nodiscard]] std::uint32_t state() const noexcept { return load_acquire(state_.words()); }
  [[nodiscard]] std::uint32_t sq_window() const noexcept { return sq_.id; }
  [[nodiscard]] std::byte* data() const noexcept { return data_.memory.address(); }

  void submit(IoOpcode opcode, std::uint64_t slba) {
    const Command command =
        make_io(opcode, 1, slba, kPage / 512, static_cast<std::uint16_t>(tail_), {data_.iova, 0, kPsdtPrp});
    std::memcpy(sq_.memory.address() + std::size_t{tail_} * sizeof command, &command, sizeof command);
    tail_ = ring_next(tail_, kDepth);
    ring_doorbell(doorbells_.words() + 2 * queue(), tail_);
  }

  /// The next completion's status, or -1 once `stop` is set or the lease is over.
  int take(const std::atomic<bool>& stop) {
    const auto* const entries = reinterpret_cast<const nvme::Completion*>(cq_.memory.address());
    nvme::Completion entry{};
    Backoff backoff;
    while (!read_completion(entries + head_, phase_, entry)) {
      if (stop.load() || state() != broker_up) {
        return -1;
      }
      backoff.pause();
    }
    head_ = ring_next(head_, kDepth);
    phase_ = head_ == 0 ? !phase_ : phase_;
    ring_doorbell(doorbells_.words() + 2 * queue() + 1, head_);
    return status_of(entry);
  }

 private:
  static constexpr std::uint32_t broker_up = 1;
  BrokerClient client_;
  SharedMapping doorbells_;
  SharedMapping state_;
  Page sq_;
  Page cq_;
  Page data_;
  std::uint32_t tail_ = 0;
  std::uint32_t head_ = 0;
  bool phase_ = true;
};

void bytes_go_both_ways() {
  Owner owner(4);
  Guest guest(*owner.host);
  const std::atomic<bool> stop{false};
  std::vector<std::byte> wanted(kPage);
  for (std::uint64_t round = 0; round < 40; ++round) {  // the rings turn over
    fill_random(guest.data(), kPage, round);
    std::memcpy(wanted.data(), guest.data(), kPage);
    guest.submit(IoOpcode::kWrite, round * 8);
    CHECK(guest.take(stop) == 0);
    std::memset(guest.data(), 0, kPage);
    guest.submit(IoOpcode::kRead, round * 8);
    CHECK(guest.take(stop) == 0);
    CHECK(std::memcmp(wanted.data(), guest.data(), kPage) == 0);
  }
  CHECK_THROWS(InvalidArgument, owner.host->unmap(guest.id(), guest.sq_window()));
  CHECK(owner.host->remove_client(guest.id()));
  CHECK(guest.state() == UINT32_MAX);
  CHECK(owner.host->counters().free_queues == 4);
  CHECK(owner.control->violations().empty());
}

/// Removed while commands are under way and new ones are being rung.
void clients_are_removed_at_any_moment() {
  Owner owner(4, 0.0005);
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> moved{0};
  std::vector<std::thread> threads;
  for (int each = 0; each < 3; ++each) {
    threads.emplace_back([&] {
      for (int life = 0; life < 15; ++life) {
        Guest guest(*owner.host);
        std::thread worker([&] {
          for (std::uint64_t slba = 0;; slba = (slba + 8) % 1024) {
            guest.submit(slba % 16 == 0 ? IoOpcode::kWrite : IoOpcode::kRead, slba);
            if (guest.take(stop) < 0) {
              return;
            }
            ++moved;
          }
        });
        const std::uint64_t begun = moved.load();
        while (moved.load() < begun + 5) {
          std::this_thread::yield();
        }
        CHECK(owner.host->remove_client(guest.id()));
        worker.join();
      }
    });
  }
  for (std::thread& each : threads) {
    each.join();
  }
  const BrokerCounters counters = owner.host->counters();
  CHECK(counters.clients == 0 && counters.stranded == 0 && counters.free_queues == 4 && counters.resets == 0);
  CHECK(owner.control->violations().empty());
}

void a_reset_of_the_controller_is_told_to_everybody() {
  Owner owner(4);
  Guest first(*owner.host);
  Guest second(*owner.host);
  SoftRule rule;
  rule.fault = SoftFault::kFatal;
  owner.control->add(rule);
  first.submit(IoOpcode::kRead, 0);
  CHECK(owner.control->wait_faults(1, Duration(30)));
  while (first.state() == 1) {  // the fault is counted before the register says it
    CHECK(owner.host->look_after());
  }
  CHECK(first.state() == 2 && second.state() == 2);
  CHECK_THROWS(SystemError, owner.host->admin(first.id(), admin_command(AdminOpcode::kIdentify, 1, 0, 0)));
  owner.host->reset_client(first.id());
  CHECK(first.state() == 1 && second.state() == 2);
  CHECK(owner.host->admin(first.id(), admin_command(AdminOpcode::kIdentify, 1, 0, 0)).data.size() == 4096);
  CHECK(owner.host->remove_client(first.id()) && owner.host->remove_client(second.id()));
}

void only_what_is_free_is_given() {
  Owner owner(2);
  const BrokerClient one = owner.host->add_client(limits_of(2));
  CHECK_THROWS(SystemError, owner.host->add_client(limits_of(1)));
  CHECK_THROWS(InvalidArgument, owner.host->remove_client(one.id + 1));
  CHECK(owner.host->remove_client(one.id));
  CHECK_THROWS(InvalidArgument, owner.host->reset_client(one.id));
}

/// A soft controller whose registers can vanish, as when its memory space is switched off: it works on, and
/// whether it may reach memory is for the bus to say.
class Vanishing final : public Transport {
 public:
  struct Switches {
    std::atomic<bool> vanished{false};
    std::atomic<bool> may_copy{false};
    std::atomic<int> given_back{0};     ///< mappings
    std::atomic<bool> in_reach{false};  ///< one was given back while the device could copy
  };

  Vanishing(std::unique_ptr<SoftTransport> inner, Switches& switches)
      : inner_(std::move(inner)), switches_(switches) {}

  std::string name() const override { return inner_->name(); }
  std::uint32_t read32(std::uint32_t offset) override {
    return switches_.vanished ? kAllOnes : inner_->read32(offset);
  }
  std::uint64_t read64(std::uint32_t offset) override {
    return switches_.vanished ? UINT64_MAX : inner_->read64(offset);
  }
  void write32(std::uint32_t offset, std::uint32_t value) override {
    if (!switches_.vanished) {
      inner_->write32(offset, value);
    }
  }
  void write64(std::uint32_t offset, std::uint64_t value) override {
    if (!switches_.vanished) {
      inner_->write64(offset, value);
    }
  }
  std::uint32_t* doorbell(std::uint32_t offset) override { return inner_->doorbell(offset); }
  DmaMemory allocate(std::uint64_t size, MemoryKind kind) override { return inner_->allocate(size, kind); }
  DmaMapping map(std::byte* address, std::uint64_t size, MemoryKind kind, int device) override {
    auto mapping = std::make_shared<DmaMapping>(inner_->map(address, size, kind, device));
    const std::vector<DmaRun> runs = mapping->runs();
    return {address, size, runs, std::shared_ptr<void>(nullptr, [mapping, &switches = switches_](void*) {
              switches.in_reach = switches.in_reach || switches.may_copy;
              ++switches.given_back;
            })};
  }
  bool set_bus_master(bool on) noexcept override {
    switches_.may_copy = on;
    return inner_->set_bus_master(on);
  }
  TransportCaps caps() const override { return inner_->caps(); }

 private:
  std::unique_ptr<SoftTransport> inner_;
  Switches& switches_;
};

void a_vanished_controller_is_cut_off_before_memory_is_given_back() {
  Vanishing::Switches switches;
  BrokerHost host(std::make_unique<Vanishing>(
                      make_soft_transport(one_namespace(), std::make_shared<SoftControl>()), switches),
                  {});
  const Guest guest(host);
  CHECK(switches.may_copy);
  switches.vanished = true;
  CHECK(host.remove_client(guest.id()));
  CHECK(switches.given_back == 3 && !switches.in_reach && !switches.may_copy);
  CHECK(host.counters().stranded == 0 && !host.counters().up);
}

}  // namespace

int main() {
  bytes_go_both_ways();
  clients_are_removed_at_any_moment();
  a_reset_of_the_controller_is_told_to_everybody();
  only_what_is_free_is_given();
  a_vanished_controller_is_cut_off_before_memory_is_given_back();
  return 0;
}
