// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "soft_device.hpp"
#include "tutti/runtime/nvme/registers.hpp"

namespace tutti::runtime::nvme::soft {
namespace {

constexpr std::uint16_t kDoNotRetry = 0x4000;
constexpr std::size_t kIdentifyBytes = 4096;
using IdentifyData = std::array<std::byte, kIdentifyBytes>;

template <typename T>
void place(IdentifyData& data, std::size_t offset, T value) {
  std::memcpy(data.data() + offset, &value, sizeof value);
}

void place_text(IdentifyData& data, std::size_t offset, std::size_t size, const std::string& text) {
  std::memset(data.data() + offset, ' ', size);
  std::memcpy(data.data() + offset, text.data(), std::min(size, text.size()));
}

IdentifyData controller_data(const SoftSettings& settings) {
  IdentifyData data{};
  place_text(data, 4, 20, "SOFT-" + settings.name);
  place_text(data, 24, 40, "Tutti soft controller");
  place_text(data, 64, 8, "1");
  const auto mdts = settings.mdts_bytes != 0 ? std::countr_zero(settings.mdts_bytes) - 12 : 0;
  place(data, 77, static_cast<std::uint8_t>(mdts));
  place(data, 80, std::uint32_t{0x00020000});
  place(data, 258, std::uint8_t{3});     // ACL: four aborts at once
  place(data, 512, std::uint8_t{0x66});  // SQES
  place(data, 513, std::uint8_t{0x44});  // CQES
  place(data, 516, static_cast<std::uint32_t>(settings.namespaces.size()));
  place(data, 525, std::uint8_t{1});  // VWC
  place(data, 536, std::uint32_t{settings.sgl ? 1U : 0U});
  return data;
}

IdentifyData namespace_data(const Storage& storage, std::uint32_t noiob) {
  IdentifyData data{};
  for (const std::size_t offset : {0U, 8U, 16U}) {
    place(data, offset, storage.blocks());
  }
  place(data, 46, static_cast<std::uint16_t>(noiob));
  place(data, 25, std::uint8_t{1});  // two formats, the second in use
  place(data, 26, std::uint8_t{1});
  place(data, 128, std::uint32_t{9U << 16});
  const auto shift = static_cast<std::uint32_t>(std::countr_zero(storage.lba_bytes()));
  place(data, 132, storage.metadata_bytes() | (shift << 16));
  return data;
}

}  // namespace

Outcome Device::run_admin(const Command& command) {
  switch (static_cast<AdminOpcode>(command.opcode)) {
    case AdminOpcode::kIdentify:
      return identify(command);
    case AdminOpcode::kSetFeatures:
      return number_of_queues(command);
    case AdminOpcode::kCreateIoCq:
      return create_cq(command);
    case AdminOpcode::kCreateIoSq:
      return create_sq(command);
    case AdminOpcode::kDeleteIoSq:
      return delete_sq(command);
    case AdminOpcode::kDeleteIoCq:
      return delete_cq(command);
    case AdminOpcode::kAbort:
      return abort(command);
    default:
      control_.violate("unknown admin opcode " + std::to_string(command.opcode));
      return {kStatusInvalidOpcode | kDoNotRetry, 0};
  }
}

Outcome Device::identify(const Command& command) {
  constexpr std::uint32_t one_namespace = 0;
  constexpr std::uint32_t controller = 1;
  constexpr std::uint32_t active_list = 2;
  IdentifyData answer{};
  if (command.cdw10 == controller) {
    answer = controller_data(settings_);
  } else if (command.cdw10 == one_namespace) {
    if (command.nsid == 0 || command.nsid > namespaces_.size()) {
      return {kStatusInvalidNamespace | kDoNotRetry, 0};
    }
    answer = namespace_data(*namespaces_[command.nsid - 1], settings_.noiob);
  } else if (command.cdw10 == active_list) {
    std::size_t offset = 0;
    for (std::uint32_t id = command.nsid + 1; id <= namespaces_.size() && offset < kIdentifyBytes; ++id) {
      place(answer, offset, id);
      offset += 4;
    }
  } else {
    return {kStatusInvalidField | kDoNotRetry, 0};
  }
  resolve(windows_, data_of(command), kIdentifyBytes, page_, false, data_);
  if (data_.status != 0) {
    control_.violate(data_.violation);
    return {data_.status, 0};
  }
  std::size_t done = 0;
  for (const std::span<std::byte> piece : data_.pieces) {
    std::memcpy(piece.data(), answer.data() + done, piece.size());
    done += piece.size();
  }
  return {};
}

Outcome Device::number_of_queues(const Command& command) {
  constexpr std::uint32_t number = 7;
  if ((command.cdw10 & 0xffU) != number) {
    return {kStatusInvalidField | kDoNotRetry, 0};
  }
  const std::uint32_t most = settings_.max_queues - 1;
  const std::uint32_t sqs = std::min(command.cdw11 & 0xffffU, most);
  const std::uint32_t cqs = std::min(command.cdw11 >> 16, most);
  return {0, sqs | (cqs << 16)};
}

Outcome Device::check_queue(const Command& command, std::uint32_t entry_bytes, std::byte*& memory) {
  const std::uint32_t id = command.cdw10 & 0xffffU;
  const std::uint32_t depth = (command.cdw10 >> 16) + 1;
  if (id == 0 || id > settings_.max_queues) {
    control_.violate("queue identifier " + std::to_string(id) + " cannot be");
    return {kStatusInvalidQueueId | kDoNotRetry, 0};
  }
  if (depth < 2 || depth > settings_.max_entries) {
    control_.violate("a queue of " + std::to_string(depth) + " entries cannot be");
    return {kStatusInvalidQueueSize | kDoNotRetry, 0};
  }
  memory = windows_.find(command.data_low, std::uint64_t{depth} * entry_bytes);
  if ((command.cdw11 & 1U) == 0 || command.data_low % page_ != 0 || memory == nullptr) {
    control_.violate("a queue must be contiguous, begin at a page and lie in a window");
    return {kStatusInvalidField | kDoNotRetry, 0};
  }
  return {};
}

Outcome Device::create_cq(const Command& command) {
  CompletionQueue queue;
  std::byte* memory = nullptr;
  const Outcome refused = check_queue(command, sizeof(Completion), memory);
  if (refused.status != 0) {
    return refused;
  }
  queue.depth = (command.cdw10 >> 16) + 1;
  queue.iova = command.data_low;
  queue.entries = reinterpret_cast<Completion*>(memory);
  const auto id = static_cast<std::uint16_t>(command.cdw10);
  for (std::uint32_t i = 0; i < queue.depth; ++i) {
    if (phase_of(load_acquire(&queue.entries[i].dw3))) {
      control_.violate("memory of a new completion queue is not cleared");
      break;
    }
  }
  store(cq_head_doorbell(id, settings_.doorbell_stride), 0);
  if (!cqs_.emplace(id, std::move(queue)).second) {
    control_.violate("completion queue " + std::to_string(id) + " exists already");
    return {kStatusInvalidQueueId | kDoNotRetry, 0};
  }
  return {};
}

Outcome Device::create_sq(const Command& command) {
  SubmissionQueue queue;
  std::byte* memory = nullptr;
  const Outcome refused = check_queue(command, sizeof(Command), memory);
  if (refused.status != 0) {
    return refused;
  }
  queue.cq = static_cast<std::uint16_t>(command.cdw11 >> 16);
  const auto cq = cqs_.find(queue.cq);
  if (queue.cq == 0 || cq == cqs_.end()) {
    control_.violate("a submission queue for completion queue " + std::to_string(queue.cq) +
                     ", which does not exist");
    return {kStatusCompletionQueueInvalid | kDoNotRetry, 0};
  }
  queue.depth = (command.cdw10 >> 16) + 1;
  queue.iova = command.data_low;
  queue.entries = reinterpret_cast<const Command*>(memory);
  const auto id = static_cast<std::uint16_t>(command.cdw10);
  store(sq_tail_doorbell(id, settings_.doorbell_stride), 0);
  if (!sqs_.emplace(id, std::move(queue)).second) {
    control_.violate("submission queue " + std::to_string(id) + " exists already");
    return {kStatusInvalidQueueId | kDoNotRetry, 0};
  }
  ++cq->second.users;
  control_.count([](SoftCounters& counters) { ++counters.queues_made; });
  return {};
}

Outcome Device::delete_sq(const Command& command) {
  const auto id = static_cast<std::uint16_t>(command.cdw10);
  const auto queue = sqs_.find(id);
  if (id == 0 || queue == sqs_.end()) {
    control_.violate("submission queue " + std::to_string(id) + " to delete does not exist");
    return {kStatusInvalidQueueId | kDoNotRetry, 0};
  }
  // What was fetched and not completed ends before the queue does.
  for (auto each = pending_.begin(); each != pending_.end();) {
    if (each->second.queue != id) {
      ++each;
      continue;
    }
    if (!each->second.only_notice) {
      post(id, each->second.command.cid, {kStatusAbortedSqDeletion, 0}, std::nullopt);
    }
    each = pending_.erase(each);
  }
  const auto cq = cqs_.find(queue->second.cq);
  --cq->second.users;
  sqs_.erase(queue);
  control_.count([](SoftCounters& counters) { ++counters.queues_deleted; });
  return {};
}

Outcome Device::delete_cq(const Command& command) {
  const auto id = static_cast<std::uint16_t>(command.cdw10);
  const auto queue = cqs_.find(id);
  if (id == 0 || queue == cqs_.end()) {
    control_.violate("completion queue " + std::to_string(id) + " to delete does not exist");
    return {kStatusInvalidQueueId | kDoNotRetry, 0};
  }
  if (queue->second.users != 0) {
    control_.violate("completion queue " + std::to_string(id) + " is deleted before its submission queue");
    return {kStatusInvalidQueueDeletion | kDoNotRetry, 0};
  }
  cqs_.erase(queue);
  return {};
}

Outcome Device::abort(const Command& command) {
  const auto id = static_cast<std::uint16_t>(command.cdw10);
  const auto cid = static_cast<std::uint16_t>(command.cdw10 >> 16);
  control_.count([](SoftCounters& counters) { ++counters.aborts; });
  const auto queue = sqs_.find(id);
  if (queue == sqs_.end()) {
    return {0, 1};
  }
  for (auto each = pending_.begin(); each != pending_.end(); ++each) {
    if (each->second.queue == id && each->second.command.cid == cid && !each->second.only_notice) {
      pending_.erase(each);
      queue->second.cids[cid] = false;
      post(id, cid, {kStatusAbortRequested, 0}, std::nullopt);
      return {0, 0};
    }
  }
  return {0, 1};  // bit 0: not aborted
}

}  // namespace tutti::runtime::nvme::soft
