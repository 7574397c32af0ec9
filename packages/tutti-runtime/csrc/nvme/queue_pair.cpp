// SPDX-License-Identifier: Apache-2.0
#include "tutti/runtime/nvme/queue_pair.hpp"

#include <cstring>

#include "tutti/runtime/nvme/registers.hpp"

namespace tutti::runtime::nvme {

QueuePair::QueuePair(Transport& transport, std::uint16_t id, std::uint32_t depth,
                     std::uint32_t doorbell_stride, MemoryKind kind)
    : transport_(transport),
      id_(id),
      depth_(depth),
      sq_memory_(transport.allocate(depth * sizeof(Command), kind)),
      cq_memory_(transport.allocate(depth * sizeof(Completion), kind)),
      sq_offset_(sq_tail_doorbell(id, doorbell_stride)),
      cq_offset_(cq_head_doorbell(id, doorbell_stride)),
      sq_doorbell_(transport.doorbell(sq_offset_)),
      cq_doorbell_(transport.doorbell(cq_offset_)),
      id_memory_(max_commands(depth, depth)),
      free_memory_(id_memory_.size()),
      in_use_memory_(id_memory_.size()) {
  sq_.entries = reinterpret_cast<Command*>(sq_memory_.address());
  cq_.entries = reinterpret_cast<const Completion*>(cq_memory_.address());
  sq_.depth = cq_.depth = depth;
  ids_.ids = id_memory_.data();
  ids_.free_slots = free_memory_.data();
  ids_.in_use = in_use_memory_.data();
  ids_.capacity = static_cast<std::uint32_t>(id_memory_.size());
  ids_.reset();
}

void QueuePair::clear() noexcept {
  std::memset(cq_memory_.address(), 0, cq_memory_.size());
  sq_.head = sq_.tail = rung_tail_ = 0;
  cq_.head = 0;
  cq_.phase = true;
  sq_doorbell_ = transport_.doorbell(sq_offset_);
  cq_doorbell_ = transport_.doorbell(cq_offset_);
  for (std::uint32_t slot = 0; slot < ids_.capacity; ++slot) {
    if (ids_.in_use[slot] != 0) {
      ids_.give_back(ids_.ids[slot]);
    }
  }
}

}  // namespace tutti::runtime::nvme
