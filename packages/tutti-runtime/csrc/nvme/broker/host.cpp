// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "client.hpp"
#include "protocol.hpp"
#include "relay.hpp"
#include "shared_memory.hpp"
#include "tutti/runtime/error.hpp"
#include "tutti/runtime/nvme/broker_host.hpp"
#include "tutti/runtime/nvme/controller.hpp"
#include "tutti/runtime/nvme/core/completion.hpp"
#include "tutti/runtime/nvme/core/ordered.hpp"
#include "tutti/runtime/nvme/identify.hpp"
#include "tutti/runtime/nvme/soft.hpp"
#include "tutti/runtime/nvme/status.hpp"

namespace tutti::runtime::nvme {
namespace {

using broker::Client;
using broker::Queue;

constexpr std::uint16_t kDoNotRetry = 0x4000;
constexpr std::uint32_t kNumberOfQueues = 7;                             // feature identifier
constexpr Clock::duration kRetryEvery = std::chrono::milliseconds(500);  // from the end of one attempt on

std::unique_ptr<Controller> bring_up(std::unique_ptr<Transport> transport, const BrokerHostOptions& options) {
  if (options.queues < 1 || options.queues > 1024) {
    throw InvalidArgument("queues=" + std::to_string(options.queues) + " must be from 1 to 1024");
  }
  ControllerOptions own;
  own.admin_timeout = options.admin_timeout;
  own.max_queues = options.queues;
  return std::make_unique<Controller>(std::move(transport), own);
}

BrokerAnswer refuse(std::uint16_t status) {
  return {0, static_cast<std::uint16_t>(status | kDoNotRetry), {}};
}

}  // namespace

class BrokerHost::Impl {
 public:
  Impl(std::unique_ptr<Transport> transport, const BrokerHostOptions& options)
      : soft_(dynamic_cast<SoftTransport*>(transport.get())),
        controller_(bring_up(std::move(transport), options)),
        identify_memory_(bus().allocate(kIdentifyBytes, MemoryKind::kHost)),
        capabilities_{bus().read64(kCap)},
        relay_(bus(), capabilities_.doorbell_stride()) {
    facts_.name = bus().name();
    facts_.model = controller_->identity().model;
    facts_.serial = controller_->identity().serial;
    facts_.cap = capabilities_.value & ~(std::uint64_t{0xf} << 32);
    facts_.version = bus().read32(kVs);
    facts_.queues = std::min(controller_->max_queues(), options.queues);
    facts_.enforces_ranges = soft_ != nullptr;
    for (std::uint32_t id = 1; id <= facts_.queues; ++id) {
      free_ids_.insert(static_cast<std::uint16_t>(id));
    }
  }

  ~Impl() {
    relay_.end_all();
    controller_->shutdown();  // before memory of clients goes
    for (const auto& [id, client] : clients_) {
      client->say(broker::kOver);
    }
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  [[nodiscard]] const BrokerFacts& facts() const noexcept { return facts_; }

  [[nodiscard]] BrokerCounters counters() const {
    const std::lock_guard lock(mutex_);
    return {static_cast<std::uint32_t>(clients_.size()),
            static_cast<std::uint32_t>(stranded_.size()),
            static_cast<std::uint32_t>(free_ids_.size()),
            resets_,
            relay_.refused(),
            state_ == State::kUp};
  }

  [[nodiscard]] BrokerClient add_client(const BrokerClientLimits& limits) {
    const std::lock_guard lock(mutex_);
    if (limits.queues < 1 || limits.queues > free_ids_.size()) {
      throw SystemError(EBUSY, std::to_string(limits.queues) + " queue pair(s) are asked for and " +
                                   std::to_string(free_ids_.size()) + " of " + std::to_string(facts_.queues) +
                                   " are free; try again when another client has ended");
    }
    auto client = std::make_unique<Client>(limits, facts_.queues);
    BrokerClient told;
    told.id = next_client_++;
    for (std::uint32_t i = 0; i < limits.queues; ++i) {
      const auto id = free_ids_.begin();
      told.queue_ids.push_back(*id);
      client->queues.emplace(*id, Queue{});
      if (soft_ != nullptr) {
        soft_->guard_queue(*id, {told.id, limits.ranges});
      }
      free_ids_.erase(id);
    }
    told.state_file = client->state_reader.get();
    told.doorbell_file = client->doorbell_file.get();
    told.doorbell_bytes = client->doorbells.size();
    client->say(state_ == State::kUp ? broker::kUp : broker::kDown);
    clients_.emplace(told.id, std::move(client));
    return told;
  }

  bool remove_client(std::uint32_t id) {
    const std::lock_guard lock(mutex_);
    Client& client = find(id);
    const bool ended = end_queues(client);
    auto node = clients_.extract(id);
    if (!ended) {
      stranded_.push_back(std::move(node.mapped()));
      return false;
    }
    release(*node.mapped());
    return true;
  }

  [[nodiscard]] BrokerWindow map(std::uint32_t id, int fd, std::uint64_t offset, std::uint64_t size) {
    const std::lock_guard lock(mutex_);
    Client& client = find(id);
    client.require_room(size);
    broker::require_steady(fd, offset, size);
    broker::Window window;
    window.memory = SharedMapping(fd, offset, size, true);
    window.mapping = bus().map(window.memory.address(), size, MemoryKind::kHost, kAnyDevice);
    BrokerWindow told{client.next_window++, window.mapping.runs()};
    if (told.runs.size() > broker::kMaxRuns) {
      throw SystemError(E2BIG, "a window of " + std::to_string(size) + " bytes lies in " +
                                   std::to_string(told.runs.size()) + " pieces on the bus; map smaller ones");
    }
    if (soft_ != nullptr) {
      soft_->set_owner(window.mapping, id);
    }
    client.window_bytes += size;
    client.windows.emplace(told.id, std::move(window));
    return told;
  }

  void unmap(std::uint32_t id, std::uint32_t window) {
    const std::lock_guard lock(mutex_);
    find(id).unmap(window);
  }

  [[nodiscard]] BrokerAnswer admin(std::uint32_t id, const Command& command) {
    const std::lock_guard lock(mutex_);
    Client& client = find(id);
    if (client.state() != broker::kUp) {
      throw SystemError(EIO, "the controller was reset or is away; reset this client first");
    }
    switch (static_cast<AdminOpcode>(command.opcode)) {
      case AdminOpcode::kIdentify:
        return identify(command);
      case AdminOpcode::kSetFeatures: {
        const auto most = static_cast<std::uint32_t>(client.queues.size() - 1);
        return command.cdw10 == kNumberOfQueues ? BrokerAnswer{most | (most << 16), 0, {}}
                                                : refuse(kStatusInvalidField);
      }
      case AdminOpcode::kCreateIoCq:
        return create_cq(client, command);
      case AdminOpcode::kCreateIoSq:
        return create_sq(client, command);
      case AdminOpcode::kDeleteIoSq:
      case AdminOpcode::kDeleteIoCq:
        return delete_queue(client, command);
      case AdminOpcode::kAbort: {
        const Queue* const queue = client.find_queue(command.cdw10);
        return queue != nullptr && queue->sq.bytes != 0
                   ? run(AdminOpcode::kAbort, command.cdw10, 0, 0, "Abort")
                   : refuse(kStatusInvalidField);
      }
      default:
        return refuse(kStatusInvalidOpcode);
    }
  }

  void reset_client(std::uint32_t id) {
    const std::lock_guard lock(mutex_);
    Client& client = find(id);
    if (state_ != State::kUp && !recover()) {
      throw SystemError(state_ == State::kDown ? ENODEV : EIO, facts_.name + ": " + down_because_);
    }
    if (!end_queues(client)) {
      throw SystemError(EIO, facts_.name + ": " + down_because_);
    }
    client.say(state_ == State::kUp ? broker::kUp : broker::kDown);
  }

  bool look_after() {
    const std::lock_guard lock(mutex_);
    return state_ == State::kUp && controller_->check_alive() == 0 ? true : recover();
  }

 private:
  enum class State {
    kUp,
    kDown,      ///< gone or cut off: nothing reaches memory
    kStranded,  ///< answers nothing and cannot be cut off
  };

  [[nodiscard]] Transport& bus() const noexcept { return controller_->transport(); }

  [[nodiscard]] Client& find(std::uint32_t id) {
    const auto place = clients_.find(id);
    if (place == clients_.end()) {
      throw InvalidArgument("client=" + std::to_string(id) + " does not exist");
    }
    return *place->second;
  }

  BrokerAnswer run(AdminOpcode opcode, std::uint32_t cdw10, std::uint32_t cdw11, std::uint64_t address,
                   const char* what, std::uint32_t nsid = 0) {
    Command command{};
    command.opcode = static_cast<std::uint8_t>(opcode);
    command.nsid = nsid;
    command.cdw10 = cdw10;
    command.cdw11 = cdw11;
    command.data_low = address;
    try {
      return {controller_->execute(command, what).dw0, 0, {}};
    } catch (const CommandFailed& failed) {
      if (failed.status() != 0) {
        return {0, failed.status(), {}};
      }
      recover();
      throw;
    }
  }

  BrokerAnswer identify(const Command& command) {
    constexpr std::uint32_t last_known = 2;  // namespace, controller, active namespaces
    if (command.cdw10 > last_known) {
      return refuse(kStatusInvalidField);
    }
    BrokerAnswer answer =
        run(AdminOpcode::kIdentify, command.cdw10, 0, identify_memory_.iova(), "Identify", command.nsid);
    if (answer.status == 0) {
      answer.data.assign(identify_memory_.address(), identify_memory_.address() + kIdentifyBytes);
    }
    return answer;
  }

  /// The status with which a controller refuses what is no ring of this client's; 0 for one that is.
  [[nodiscard]] std::uint16_t check_ring(const Client& client, const Command& command,
                                         std::uint64_t entry) const {
    const std::uint32_t depth = (command.cdw10 >> 16) + 1;
    if (depth < 2 || depth > capabilities_.max_entries()) {
      return kStatusInvalidQueueSize;
    }
    const bool aligned = command.data_low % controller_->page_bytes() == 0;
    return aligned && client.has(command.data_low, depth * entry) ? 0 : kStatusInvalidPrpOffset;
  }

  BrokerAnswer create_cq(Client& client, const Command& command) {
    Queue* const queue = client.find_queue(command.cdw10);
    if (queue == nullptr || queue->cq.bytes != 0) {
      return refuse(kStatusInvalidQueueId);
    }
    if (const std::uint16_t status = check_ring(client, command, sizeof(Completion))) {
      return refuse(status);
    }
    constexpr std::uint32_t contiguous = 1;  // no interrupts: whoever polls needs none
    const auto id = static_cast<std::uint16_t>(command.cdw10);
    const std::uint32_t depth = (command.cdw10 >> 16) + 1;
    relay_.begin_cq(id, depth, client.doorbells.words() + 2 * id + 1);
    queue->cq = {command.data_low, depth * sizeof(Completion)};
    BrokerAnswer answer = run(AdminOpcode::kCreateIoCq, command.cdw10, contiguous, command.data_low,
                              "Create I/O Completion Queue");
    if (answer.status != 0) {
      relay_.end_cq(id);
      queue->cq = {};
    }
    return answer;
  }

  BrokerAnswer create_sq(Client& client, const Command& command) {
    Queue* const queue = client.find_queue(command.cdw10);
    if (queue == nullptr || queue->sq.bytes != 0) {
      return refuse(kStatusInvalidQueueId);
    }
    const auto id = static_cast<std::uint16_t>(command.cdw10);
    if (queue->cq.bytes == 0 || command.cdw11 >> 16 != id) {
      return refuse(kStatusCompletionQueueInvalid);
    }
    if (const std::uint16_t status = check_ring(client, command, sizeof(Command))) {
      return refuse(status);
    }
    constexpr std::uint32_t contiguous = 1;
    const std::uint32_t depth = (command.cdw10 >> 16) + 1;
    queue->sq = {command.data_low, depth * sizeof(Command)};
    BrokerAnswer answer = run(AdminOpcode::kCreateIoSq, command.cdw10, contiguous | (std::uint32_t{id} << 16),
                              command.data_low, "Create I/O Submission Queue");
    if (answer.status != 0) {
      queue->sq = {};
    } else {
      relay_.begin_sq(id, depth, client.doorbells.words() + 2 * id);
    }
    return answer;
  }

  BrokerAnswer delete_queue(Client& client, const Command& command) {
    const auto id = static_cast<std::uint16_t>(command.cdw10);
    Queue* const queue = client.find_queue(id);
    const bool submission = static_cast<AdminOpcode>(command.opcode) == AdminOpcode::kDeleteIoSq;
    if (queue == nullptr || (submission ? queue->sq : queue->cq).bytes == 0) {
      return refuse(kStatusInvalidQueueId);
    }
    if (!submission && queue->sq.bytes != 0) {
      return refuse(kStatusInvalidQueueDeletion);
    }
    return submission ? delete_sq(id, *queue) : delete_cq(id, *queue);
  }

  BrokerAnswer delete_sq(std::uint16_t id, Queue& queue) {
    relay_.end_sq(id);
    BrokerAnswer answer = run(AdminOpcode::kDeleteIoSq, id, 0, 0, "Delete I/O Submission Queue");
    if (answer.status == 0) {
      queue.sq = {};
    }
    return answer;
  }

  BrokerAnswer delete_cq(std::uint16_t id, Queue& queue) {
    relay_.end_cq(id);
    BrokerAnswer answer = run(AdminOpcode::kDeleteIoCq, id, 0, 0, "Delete I/O Completion Queue");
    if (answer.status == 0) {
      queue.cq = {};
    }
    return answer;
  }

  /// Whether the controller has no queue of the client any more. Resets it where it does not let go of one.
  bool end_queues(Client& client) {
    try {
      for (auto& [id, queue] : client.queues) {
        if (state_ == State::kUp && queue.sq.bytes != 0 && delete_sq(id, queue).status != 0) {
          break;
        }
        if (state_ == State::kUp && queue.cq.bytes != 0 && delete_cq(id, queue).status != 0) {
          break;
        }
      }
    } catch (const SystemError& error) {  // run() has reset the controller, or tried to
      down_because_ = error.what();
    }
    if (client.has_queues()) {
      recover();
    }
    return state_ != State::kStranded;
  }

  /// Controller reset: nobody has queues afterwards. @returns whether it works again.
  bool recover() {
    if (state_ != State::kUp && Clock::now() - tried_ < kRetryEvery) {
      return false;
    }
    relay_.end_all();
    ++resets_;
    try {
      controller_->reset();
      state_ = State::kUp;
    } catch (const Error& error) {
      down_because_ = error.what();
      const bool gone = controller_->check_alive() == ENODEV;
      state_ = bus().set_bus_master(false) || gone ? State::kDown : State::kStranded;
    }
    tried_ = Clock::now();
    if (state_ != State::kStranded) {
      for (auto& [id, client] : clients_) {
        client->forget_queues();
        client->say(state_ == State::kUp ? broker::kLost : broker::kDown);
      }
      for (const auto& client : std::exchange(stranded_, {})) {
        client->forget_queues();
        release(*client);
      }
    } else {
      for (auto& [id, client] : clients_) {
        client->say(broker::kLost);
      }
    }
    return state_ == State::kUp;
  }

  /// Nothing of the client reaches memory any more.
  void release(Client& client) {
    client.say(broker::kOver);
    client.windows.clear();
    for (const auto& [id, queue] : client.queues) {
      if (soft_ != nullptr) {
        soft_->guard_queue(id, {});
      }
      free_ids_.insert(id);
    }
  }

  SoftTransport* const soft_;
  const std::unique_ptr<Controller> controller_;
  const DmaMemory identify_memory_;
  const Capabilities capabilities_;
  broker::Relay relay_;
  BrokerFacts facts_;

  mutable std::mutex mutex_;
  std::set<std::uint16_t> free_ids_;
  std::map<std::uint32_t, std::unique_ptr<Client>> clients_;
  std::vector<std::unique_ptr<Client>> stranded_;
  std::uint32_t next_client_ = 1;
  std::uint64_t resets_ = 0;
  State state_ = State::kUp;
  std::string down_because_;
  TimePoint tried_;
};

BrokerHost::BrokerHost(std::unique_ptr<Transport> transport, const BrokerHostOptions& options)
    : impl_(std::make_unique<Impl>(std::move(transport), options)) {}
BrokerHost::~BrokerHost() = default;

const BrokerFacts& BrokerHost::facts() const noexcept { return impl_->facts(); }
BrokerCounters BrokerHost::counters() const { return impl_->counters(); }
BrokerClient BrokerHost::add_client(const BrokerClientLimits& limits) { return impl_->add_client(limits); }
bool BrokerHost::remove_client(std::uint32_t client) { return impl_->remove_client(client); }
BrokerWindow BrokerHost::map(std::uint32_t client, int fd, std::uint64_t offset, std::uint64_t size) {
  return impl_->map(client, fd, offset, size);
}
void BrokerHost::unmap(std::uint32_t client, std::uint32_t window) { impl_->unmap(client, window); }
BrokerAnswer BrokerHost::admin(std::uint32_t client, const Command& command) {
  return impl_->admin(client, command);
}
void BrokerHost::reset_client(std::uint32_t client) { impl_->reset_client(client); }
bool BrokerHost::look_after() { return impl_->look_after(); }

}  // namespace tutti::runtime::nvme
