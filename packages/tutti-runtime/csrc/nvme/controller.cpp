// SPDX-License-Identifier: Apache-2.0
#include "tutti/runtime/nvme/controller.hpp"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <string>
#include <utility>

#include "tutti/runtime/error.hpp"
#include "tutti/runtime/nvme/backoff.hpp"
#include "tutti/runtime/nvme/status.hpp"

namespace tutti::runtime::nvme {
namespace {

constexpr std::uint32_t kIdentifyNamespace = 0;
constexpr std::uint32_t kIdentifyController = 1;
constexpr std::uint32_t kActiveNamespaces = 2;
constexpr std::uint32_t kNumberOfQueues = 7;  // feature identifier
constexpr std::chrono::microseconds kLongestNap(1000);

IdentifyData bytes_of(const DmaMemory& memory) { return IdentifyData(memory.address(), kIdentifyBytes); }

SystemError gone(const Transport& transport) {
  return {ENODEV, transport.name() + ": " + transport.describe_gone()};
}

}  // namespace

Controller::Controller(std::unique_ptr<Transport> transport, const ControllerOptions& options)
    : transport_(std::move(transport)), options_(options) {
  capabilities_.value = transport_->read64(kCap);
  if (capabilities_.value == UINT64_MAX) {
    throw gone(*transport_);
  }
  if (!capabilities_.nvm_command_set()) {
    throw InvalidArgument(transport_->name() + ": the controller has no NVM command set (CAP.CSS)");
  }
  identify_memory_ =
      transport_->allocate(std::max<std::uint64_t>(kIdentifyBytes, page_bytes()), MemoryKind::kHost);
  try {
    disable();
    transport_->set_bus_master(true);
    enable();
    identify();
    negotiate_queues();
  } catch (...) {
    shutdown();  // its memory must not go while it may still write
    throw;
  }
  for (const std::uint16_t id : transport_->queue_ids()) {
    queue_ids_.emplace(id, false);
  }
  if (queue_ids_.empty()) {
    for (std::uint32_t id = 1; id <= granted_queues_; ++id) {
      queue_ids_.emplace(static_cast<std::uint16_t>(id), false);
    }
  }
}

Controller::~Controller() { shutdown(); }

const NamespaceIdentity* Controller::find_namespace(std::uint32_t nsid) const noexcept {
  const auto place = std::find_if(namespaces_.begin(), namespaces_.end(),
                                  [nsid](const NamespaceIdentity& each) { return each.nsid == nsid; });
  return place == namespaces_.end() ? nullptr : &*place;
}

void Controller::wait_status(std::uint32_t mask, std::uint32_t value, Duration timeout, const char* what) {
  const TimePoint deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(timeout);
  Backoff backoff(kLongestNap);
  while (true) {
    const std::uint32_t csts = transport_->read32(kCsts);
    if (csts == kAllOnes) {
      throw gone(*transport_);
    }
    if ((csts & mask) == value) {
      return;
    }
    if ((csts & kCstsFatal) != 0 && (mask & value & kCstsReady) != 0) {
      throw SystemError(EIO,
                        transport_->name() + ": fatal error (CSTS.CFS) while waiting for it to be " + what);
    }
    if (Clock::now() >= deadline) {
      throw SystemError(ETIMEDOUT, transport_->name() + ": the controller is not " + what + " after " +
                                       std::to_string(timeout.count()) + " s (CAP.TO)");
    }
    backoff.pause();
  }
}

void Controller::disable() {
  const Duration timeout(std::max(capabilities_.timeout_ms(), 500U) / 1000.0);
  const std::uint32_t cc = transport_->read32(kCc);
  // A controller that is on its way up must arrive before it may be disabled; one with an error never does.
  if ((cc & kCcEnable) != 0 && (transport_->read32(kCsts) & (kCstsReady | kCstsFatal)) == 0) {
    wait_status(kCstsReady, kCstsReady, timeout, "ready");
  }
  transport_->write32(kCc, cc & ~(kCcEnable | kCcShutdownMask));
  wait_status(kCstsReady, 0, timeout, "disabled");
}

void Controller::enable() {
  if (admin_) {
    admin_->queue().clear();
  } else {
    admin_.emplace(*transport_, capabilities_.doorbell_stride());
  }
  constexpr std::uint32_t last = AdminQueue::kDepth - 1;
  transport_->write32(kAqa, last | (last << 16));
  transport_->write64(kAsq, admin_->queue().sq_memory().iova());
  transport_->write64(kAcq, admin_->queue().cq_memory().iova());
  const auto page_code = static_cast<std::uint32_t>(std::countr_zero(page_bytes()) - 12);
  transport_->write32(kCc, kCcEnable | (page_code << kCcPageShift) | kCcSqEntry64 | kCcCqEntry16);
  const Duration timeout(std::max(capabilities_.timeout_ms(), 500U) / 1000.0);
  wait_status(kCstsReady, kCstsReady, timeout, "ready");
}

void Controller::identify_into_memory(std::uint32_t cns, std::uint32_t nsid) {
  Command command{};
  command.opcode = static_cast<std::uint8_t>(AdminOpcode::kIdentify);
  command.nsid = nsid;
  command.cdw10 = cns;
  set_data(command, prp_pointer(identify_memory_.iova(), 0));
  static_cast<void>(admin_->execute(command, "Identify", options_.admin_timeout));
}

void Controller::identify() {
  identify_into_memory(kIdentifyController, 0);
  identity_ = parse_controller(bytes_of(identify_memory_));
  if ((identity_.sq_entry & 0xfU) > 6 || (identity_.cq_entry & 0xfU) > 4) {
    throw InvalidArgument(transport_->name() +
                          ": the controller wants larger queue entries than 64 and 16 bytes");
  }
  std::uint32_t after = 0;
  std::vector<std::uint32_t> ids;
  do {  // a list holds 1024
    identify_into_memory(kActiveNamespaces, after);
    ids = parse_namespace_list(bytes_of(identify_memory_));
    for (const std::uint32_t nsid : ids) {
      identify_into_memory(kIdentifyNamespace, nsid);
      namespaces_.push_back(parse_namespace(bytes_of(identify_memory_), nsid));
      after = nsid;
    }
  } while (ids.size() == kIdentifyBytes / 4);
}

void Controller::negotiate_queues() {
  Command command{};
  command.opcode = static_cast<std::uint8_t>(AdminOpcode::kSetFeatures);
  command.cdw10 = kNumberOfQueues;
  const std::uint32_t wanted = std::clamp(options_.max_queues, 1U, 65535U) - 1;
  command.cdw11 = wanted | (wanted << 16);
  const Completion answer =
      admin_->execute(command, "Set Features (Number of Queues)", options_.admin_timeout);
  granted_queues_ = std::min({wanted, answer.dw0 & 0xffffU, answer.dw0 >> 16}) + 1;
}

void Controller::admin(AdminOpcode opcode, std::uint32_t cdw10, std::uint32_t cdw11, std::uint64_t address,
                       const char* what) {
  Command command{};
  command.opcode = static_cast<std::uint8_t>(opcode);
  command.cdw10 = cdw10;
  command.cdw11 = cdw11;
  command.data_low = address;
  static_cast<void>(admin_->execute(command, what, options_.admin_timeout));
}

void Controller::create(QueuePair& queue) {
  constexpr std::uint32_t contiguous = 1;
  const std::uint32_t size_and_id = ((queue.depth() - 1) << 16) | queue.id();
  admin(AdminOpcode::kCreateIoCq, size_and_id, contiguous, queue.cq_memory().iova(),
        "Create I/O Completion Queue");
  admin(AdminOpcode::kCreateIoSq, size_and_id, contiguous | (std::uint32_t{queue.id()} << 16),
        queue.sq_memory().iova(), "Create I/O Submission Queue");
}

std::unique_ptr<QueuePair> Controller::make_queue_pair(std::uint32_t depth, MemoryKind kind) {
  if (depth < 2) {
    throw InvalidArgument("depth=" + std::to_string(depth) + " must be 2 or more");
  }
  constexpr std::uint32_t most_identifiers = 1U << 14;  // command_ids.hpp
  const auto free_id =
      std::find_if(queue_ids_.begin(), queue_ids_.end(), [](const auto& each) { return !each.second; });
  if (free_id == queue_ids_.end()) {
    throw InvalidArgument(transport_->name() + ": all " + std::to_string(granted_queues_) +
                          " I/O queue pairs are in use");
  }
  const std::uint16_t id = free_id->first;
  depth = std::min({depth, capabilities_.max_entries(), most_identifiers});
  auto queue = std::make_unique<QueuePair>(*transport_, id, depth, capabilities_.doorbell_stride(), kind);
  create(*queue);
  free_id->second = true;
  return queue;
}

void Controller::delete_submission_queue(QueuePair& queue) {
  admin(AdminOpcode::kDeleteIoSq, queue.id(), 0, 0, "Delete I/O Submission Queue");
}

void Controller::delete_completion_queue(QueuePair& queue) {
  admin(AdminOpcode::kDeleteIoCq, queue.id(), 0, 0, "Delete I/O Completion Queue");
}

void Controller::delete_queue_pair(QueuePair& queue) {
  delete_submission_queue(queue);
  delete_completion_queue(queue);
  queue_ids_[queue.id()] = false;
}

void Controller::remake(QueuePair& queue) {
  delete_submission_queue(queue);
  delete_completion_queue(queue);
  queue.clear();
  create(queue);
}

bool Controller::abort(const QueuePair& queue, std::uint16_t cid) {
  Command command{};
  command.opcode = static_cast<std::uint8_t>(AdminOpcode::kAbort);
  command.cdw10 = queue.id() | (std::uint32_t{cid} << 16);
  constexpr std::uint32_t not_aborted = 1;
  return (admin_->execute(command, "Abort", options_.admin_timeout).dw0 & not_aborted) == 0;
}

void Controller::reset() {
  disable();
  transport_->set_bus_master(true);  // not before: what it was cut off for could still run
  enable();
  const std::vector<NamespaceIdentity> before = std::exchange(namespaces_, {});
  const std::string serial = identity_.serial;
  try {
    identify();
    negotiate_queues();
  } catch (...) {
    namespaces_ = before;
    throw;
  }
  const auto same = [](const NamespaceIdentity& a, const NamespaceIdentity& b) {
    return a.nsid == b.nsid && a.blocks == b.blocks && a.block_shift == b.block_shift;
  };
  if (identity_.serial != serial ||
      !std::equal(before.begin(), before.end(), namespaces_.begin(), namespaces_.end(), same)) {
    namespaces_ = before;
    disable();
    throw SystemError(ESTALE,
                      transport_->name() + ": another device, or another layout, came back after a reset");
  }
}

void Controller::shutdown() noexcept {
  if (!transport_ || !admin_) {
    return;
  }
  try {
    if (check_alive() == 0) {
      const std::uint32_t cc = transport_->read32(kCc);
      transport_->write32(kCc, (cc & ~kCcShutdownMask) | kCcShutdownNormal);
      wait_status(kCstsShutdownMask, kCstsShutdownDone, options_.admin_timeout, "shut down");
    }
    disable();
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): gone or stuck, and cut off below
  }
  transport_->set_bus_master(false);
  admin_.reset();
}

}  // namespace tutti::runtime::nvme
