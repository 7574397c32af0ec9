// SPDX-License-Identifier: Apache-2.0
// The soft controller notices what a driver must not do. A judge that lets everything pass proves nothing.
#include <array>
#include <string>

#include "soft_rig.hpp"
#include "tutti/runtime/nvme/core/sgl.hpp"

using namespace soft_rig;

namespace {

bool said(const Rig& rig, const std::string& words) {
  for (const std::string& each : rig.control->violations()) {
    if (each.find(words) != std::string::npos) {
      return true;
    }
  }
  for (const std::string& each : rig.control->violations()) {
    std::fprintf(stderr, "only: %s\n", each.c_str());
  }
  return false;
}

/// One command on a fresh rig: its status, and what the controller said.
struct Case {
  explicit Case(const SoftSettings& settings = one_namespace()) : rig(settings) {
    queue = rig.controller->make_queue_pair(8);
    memory = rig.memory(8 * 4096);
  }
  ~Case() { rig.controller->shutdown(); }
  Case(const Case&) = delete;
  Case& operator=(const Case&) = delete;

  std::uint16_t kind(const Command& command) { return kind_of_status(run(*queue, command)); }

  Rig rig;
  std::unique_ptr<QueuePair> queue;
  DmaMemory memory;
};

void bad_data_pointers() {
  {
    Case c;
    CHECK(c.kind(make_read(1, 0, 8, 0, prp_pointer(c.memory.iova() + 2, 0))) == kStatusInvalidPrpOffset);
    CHECK(said(c.rig, "PRP1 is not dword-aligned"));
  }
  {
    Case c;
    CHECK(c.kind(make_read(1, 0, 16, 0, prp_pointer(c.memory.iova(), c.memory.iova() + 4096 + 512))) ==
          kStatusInvalidPrpOffset);
    CHECK(said(c.rig, "not page-aligned"));
  }
  {
    Case c;
    CHECK(c.kind(make_read(1, 0, 24, 0, prp_pointer(c.memory.iova(), c.memory.iova() + 4))) ==
          kStatusInvalidPrpOffset);
    CHECK(said(c.rig, "not qword-aligned"));
  }
  {
    Case c;
    CHECK(c.kind(make_read(1, 0, 24, 0, prp_pointer(c.memory.iova(), 0x123000))) == kStatusDataTransferError);
    CHECK(said(c.rig, "a PRP list outside"));
  }
  {
    Case c;  // the second page is one byte beyond the window
    const std::uint64_t end = c.memory.iova() + c.memory.size();
    CHECK(c.kind(make_read(1, 0, 16, 0, prp_pointer(end - 4096, end))) == kStatusDataTransferError);
    CHECK(said(c.rig, "data outside of every window"));
  }
  {
    Case c;
    CHECK(c.kind(make_read(1, 0, 8, 0, sgl_pointer(c.memory.iova(), 4096, 0))) == kStatusInvalidField);
    CHECK(said(c.rig, "PSDT 1 is not supported"));
  }
}

void bad_sgl() {
  SoftSettings settings = one_namespace();
  settings.sgl = true;
  const auto expect = [&](auto change, std::uint16_t status, const char* words) {
    Case c(settings);
    auto* const list = reinterpret_cast<SglDescriptor*>(c.memory.address());
    list[0] = sgl_descriptor(c.memory.iova() + 4096, 2048, kSglDataBlock);
    list[1] = sgl_descriptor(c.memory.iova() + 8192, 2048, kSglDataBlock);
    DataPointer pointer = sgl_pointer(c.memory.iova(), 32, kSglLastSegment);
    change(list, pointer);
    CHECK(c.kind(make_read(1, 0, 8, 0, pointer)) == status);
    CHECK(*words == '\0' ? c.rig.control->violations().empty() : said(c.rig, words));
  };
  expect([](SglDescriptor*, DataPointer&) {}, kStatusSuccess, "");
  expect([](SglDescriptor* list, DataPointer&) { list[1].length = 1024; }, kStatusSglDataLength, "length");
  expect([](SglDescriptor* list, DataPointer&) { list[1].reserved[1] = 1; }, kStatusInvalidSglSegment,
         "reserved");
  expect([](SglDescriptor* list, DataPointer&) { list[1].identifier = 0x40; }, kStatusInvalidSglSegment,
         "none may be");
  expect([](SglDescriptor*, DataPointer& pointer) { pointer.high -= 1; }, kStatusInvalidSglSegment,
         "multiple of 16");
  expect([](SglDescriptor*, DataPointer& pointer) { pointer = sgl_pointer(pointer.low, 32, kSglSegment); },
         kStatusInvalidSglSegment, "does not end with another");
  expect([](SglDescriptor*, DataPointer& pointer) { pointer.low = 0x1000; }, kStatusDataTransferError,
         "SGL segment outside");
}

void bad_commands() {
  const auto expect = [](const SoftSettings& settings, auto change, std::uint16_t status, const char* words) {
    Case c(settings);
    Command command = make_read(1, 0, 8, 0, prp_pointer(c.memory.iova(), 0));
    change(command);
    CHECK(c.kind(command) == status);
    CHECK(said(c.rig, words));
  };
  const SoftSettings plain = one_namespace();
  expect(plain, [](Command& c) { c.flags = 1; }, kStatusInvalidField, "reserved fields");
  expect(plain, [](Command& c) { c.cdw2 = 1; }, kStatusInvalidField, "reserved fields");
  expect(plain, [](Command& c) { c.metadata = 8; }, kStatusInvalidField, "reserved fields");
  expect(plain, [](Command& c) { c.cdw15 = 1; }, kStatusInvalidField, "reserved fields");
  expect(plain, [](Command& c) { c.cdw12 |= 1U << 30; }, kStatusInvalidField, "reserved fields");
  expect(plain, [](Command& c) { c.opcode = 0x7f; }, kStatusInvalidOpcode, "unknown I/O opcode");
  expect(plain, [](Command& c) { c.nsid = 0; }, kStatusInvalidNamespace, "unknown namespace");
  expect(plain, [](Command& c) { c.cdw11 = 1; }, kStatusLbaOutOfRange, "beyond the namespace");
  SoftSettings small = one_namespace();
  small.mdts_bytes = 8192;
  expect(small, [](Command& c) { c.cdw12 = 16; }, kStatusInvalidField, "larger than MDTS");
}

void a_command_identifier_twice() {
  SoftSettings settings = one_namespace();
  settings.latency = 0.02;
  Case c(settings);
  SubmissionRing& ring = c.queue->submission_ring();
  ring.push(make_flush(1, 5));
  ring.push(make_flush(1, 5));
  ring_doorbell(c.queue->sq_doorbell(), ring.tail);
  CompletionRing& completions = c.queue->completion_ring();
  std::array<nvme::Completion, 2> entries{};
  Backoff backoff;
  for (nvme::Completion& entry : entries) {
    while (!completions.pop(entry)) {
      backoff.pause();
    }
  }
  CHECK(kind_of_status(status_of(entries[0])) == kStatusCommandIdConflict && status_of(entries[1]) == 0);
  CHECK(said(c.rig, "is in flight already"));
}

void wait_for_fatal(Rig& rig) {
  Backoff backoff;
  while (rig.controller->check_alive() == 0) {
    backoff.pause();
  }
}

void bad_doorbells() {
  {
    Case c;
    ring_doorbell(c.queue->sq_doorbell(), 8);
    wait_for_fatal(c.rig);
    CHECK(said(c.rig, "out of range: 8"));
  }
  {
    SoftSettings settings = one_namespace();
    settings.latency = 1000;  // nothing is completed, so that nothing falls free
    Case c(settings);
    for (int i = 0; i < 7; ++i) {
      c.queue->submit(make_flush(1, 0));
    }
    c.queue->ring();
    Backoff backoff;
    while (c.rig.control->counters().commands < 7) {
      backoff.pause();
    }
    ring_doorbell(c.queue->sq_doorbell(), 0);  // an eighth entry in a ring that holds seven
    wait_for_fatal(c.rig);
    CHECK(said(c.rig, "overrun"));
  }
  {
    Case c;
    ring_doorbell(c.queue->cq_doorbell(), 9);
    c.queue->submit(make_flush(1, 0));
    c.queue->ring();
    wait_for_fatal(c.rig);
    CHECK(said(c.rig, "completion queue 1 out of range: 9"));
  }
}

// More commands than the completion queue has places, and a reader that does not tell its head.
void a_full_completion_queue() {
  Case c;
  SubmissionRing& ring = c.queue->submission_ring();
  CompletionRing& completions = c.queue->completion_ring();
  nvme::Completion entry;
  Backoff backoff;
  for (std::uint16_t i = 0; i < 10; ++i) {
    ring.push(make_flush(1, i));
    ring_doorbell(c.queue->sq_doorbell(), ring.tail);
    if (i < 7) {
      while (!completions.pop(entry)) {
        backoff.pause();
      }
      CHECK(ring.set_head(sq_head_of(entry)));
    }
  }
  while (c.rig.control->violations().empty()) {
    backoff.pause();
  }
  CHECK(said(c.rig, "is full"));
  ring_doorbell(c.queue->cq_doorbell(), completions.head);
  for (int i = 7; i < 10; ++i) {  // what waited comes once there is room
    while (!completions.pop(entry)) {
      backoff.pause();
    }
  }
}

void bad_queues() {
  Rig rig;
  auto queue = rig.controller->make_queue_pair(8);
  CHECK_THROWS(SystemError, rig.controller->create(*queue));
  CHECK(said(rig, "completion queue 1 exists already"));
  rig.controller->delete_queue_pair(*queue);
  CHECK_THROWS(SystemError, rig.controller->delete_queue_pair(*queue));
  CHECK(said(rig, "to delete does not exist"));
  // Cleared memory is what makes the first phase tell something.
  const_cast<nvme::Completion*>(queue->completion_ring().entries)[3].dw3 = 1U << 16;
  rig.controller->create(*queue);
  CHECK(said(rig, "not cleared"));
  queue.reset();
  wait_for_fatal(rig);
  CHECK(said(rig, "was unmapped while the queue exists"));
}

void registers_have_their_order() {
  Rig rig;
  Transport& transport = rig.controller->transport();
  transport.write32(kAqa, 1);
  CHECK(said(rig, "admin queue's register was written"));
  rig.control->stuck.store(true);
  transport.write32(kCc, 0);
  transport.write32(kCc, kCcEnable);
  CHECK(said(rig, "before CSTS.RDY had fallen"));
  transport.write32(kCc, 0);
  rig.control->heal();
  Backoff backoff;
  while ((transport.read32(kCsts) & kCstsReady) != 0) {
    backoff.pause();
  }
  transport.write32(kDoorbells, 1);
  CHECK(said(rig, "while the controller is not ready"));
  transport.write32(kCc, kCcEnable | (1U << kCcPageShift) | kCcSqEntry64 | kCcCqEntry16);
  while ((transport.read32(kCsts) & kCstsFatal) == 0) {
    backoff.pause();
  }
  CHECK(said(rig, "CC.MPS"));
}

void settings_outside_their_range_are_refused() {
  const auto refused = [](auto change) {
    SoftSettings settings = one_namespace();
    change(settings);
    CHECK_THROWS(InvalidArgument, make_soft_transport(settings, nullptr));
  };
  refused([](SoftSettings& s) { s.mdts_bytes = 5000; });
  refused([](SoftSettings& s) { s.max_entries = 1; });
  refused([](SoftSettings& s) { s.max_queues = 0; });
  refused([](SoftSettings& s) { s.doorbell_stride = 6; });
  refused([](SoftSettings& s) { s.timeout_ms = 0; });
  refused([](SoftSettings& s) { s.dma_granule = 100; });
  refused([](SoftSettings& s) { s.namespaces.clear(); });
  refused([](SoftSettings& s) { s.namespaces[0].lba_bytes = 520; });
  refused([](SoftSettings& s) { s.namespaces[0].bytes = 513; });
  SoftSettings settings = one_namespace();
  settings.namespaces[0].image = "/no/such/image";
  CHECK_THROWS(SystemError, make_soft_transport(settings, nullptr));
  const auto transport = make_soft_transport(one_namespace(), nullptr);
  CHECK_THROWS(InvalidArgument, transport->allocate(4096, MemoryKind::kDevice));
}

}  // namespace

int main() {
  bad_data_pointers();
  bad_sgl();
  bad_commands();
  a_command_identifier_twice();
  bad_doorbells();
  a_full_completion_queue();
  bad_queues();
  registers_have_their_order();
  settings_outside_their_range_are_refused();
}
