// SPDX-License-Identifier: Apache-2.0
// Queue entries and registers, bit by bit against the tables of the specification.
#include <array>
#include <cerrno>
#include <cstring>

#include "../check.hpp"
#include "tutti/runtime/nvme/core/command.hpp"
#include "tutti/runtime/nvme/core/completion.hpp"
#include "tutti/runtime/nvme/registers.hpp"

using namespace tutti::runtime::nvme;

namespace {

template <typename T>
std::array<std::uint32_t, sizeof(T) / 4> words(const T& entry) {
  std::array<std::uint32_t, sizeof(T) / 4> result{};
  std::memcpy(result.data(), &entry, sizeof entry);
  return result;
}

void a_read_has_every_field_in_its_place() {
  const auto dwords = words(make_read(0x11223344, 0xaabbccdd01020304, 65536, 0x5566,
                                      prp_pointer(0x1122334455667788, 0x99aabbccddeeff00)));
  CHECK(dwords[0] == 0x55660002);
  CHECK(dwords[1] == 0x11223344);
  CHECK(dwords[2] == 0 && dwords[3] == 0 && dwords[4] == 0 && dwords[5] == 0);
  CHECK(dwords[6] == 0x55667788 && dwords[7] == 0x11223344);
  CHECK(dwords[8] == 0xddeeff00 && dwords[9] == 0x99aabbcc);
  CHECK(dwords[10] == 0x01020304 && dwords[11] == 0xaabbccdd);
  CHECK(dwords[12] == 0xffff);
  CHECK(dwords[13] == 0 && dwords[14] == 0 && dwords[15] == 0);
}

void a_write_with_sgl_and_a_flush() {
  const Command write = make_write(1, 7, 8, 9, sgl_pointer(0x1000, 4096, kSglLastSegment));
  const auto dwords = words(write);
  CHECK(dwords[0] == 0x00094001);
  CHECK(dwords[6] == 0x1000 && dwords[7] == 0 && dwords[8] == 4096 && dwords[9] == 0x30000000);
  CHECK(slba_of(write) == 7 && blocks_of(write) == 8);
  const SglDescriptor sgl = sgl_of(data_of(write));
  CHECK(sgl.address == 0x1000 && sgl.length == 4096 && sgl.identifier == kSglLastSegment);
  CHECK(words(make_flush(3, 2))[0] == 0x00020000 && words(make_flush(3, 2))[1] == 3);
}

void a_completion_is_taken_by_its_phase() {
  Completion slot{};
  slot.dw0 = 5;
  slot.dw2 = 0x00020001;
  slot.dw3 = 0x0042U | (1U << 16) | (0x4281U << 17);
  Completion entry{};
  CHECK(!read_completion(&slot, false, entry));
  CHECK(read_completion(&slot, true, entry));
  CHECK(entry.dw0 == 5 && sq_head_of(entry) == 1 && sq_id_of(entry) == 2 && cid_of(entry) == 0x42);
  const std::uint16_t status = status_of(entry);
  CHECK(status_type(status) == 2 && status_code(status) == 0x81 && do_not_retry(status));
  CHECK(kind_of_status(status) == kStatusUnrecoveredRead && to_errno(status) == ENODATA);
}

void statuses_have_errnos() {
  CHECK(to_errno(kStatusSuccess) == 0);
  CHECK(to_errno(kStatusAbortRequested) == ECANCELED);
  CHECK(to_errno(kStatusInvalidField) == EINVAL);
  CHECK(to_errno(kStatusInvalidNamespace) == ENODEV);
  CHECK(to_errno(kStatusLbaOutOfRange) == ENOSPC);
  CHECK(to_errno(kStatusAccessDenied) == EACCES);
  for (std::uint16_t status = 1; status < 0x800; ++status) {
    CHECK(to_errno(status) > 0);
  }
}

void registers_are_read_as_the_specification_has_them() {
  // MQES 2047, CQR, TO 15, DSTRD 1, CSS NVM, MPSMIN 0, MPSMAX 4
  const Capabilities cap{0x7ffULL | (1ULL << 16) | (15ULL << 24) | (1ULL << 32) | (1ULL << 37) |
                         (4ULL << 52)};
  CHECK(cap.max_entries() == 2048 && cap.contiguous_queues() && cap.timeout_ms() == 7500);
  CHECK(cap.doorbell_stride() == 8 && cap.nvm_command_set());
  CHECK(cap.min_page_bytes() == 4096 && cap.max_page_bytes() == 65536);
  CHECK(sq_tail_doorbell(0, 4) == 0x1000 && cq_head_doorbell(0, 4) == 0x1004);
  CHECK(sq_tail_doorbell(3, 8) == 0x1030 && cq_head_doorbell(3, 8) == 0x1038);
}

void ordered_words_hold_what_was_stored() {
  std::uint32_t word = 0;
  store_release(&word, 7U);
  CHECK(load_acquire(&word) == 7 && load_relaxed(&word) == 7);
  ring_doorbell(&word, 9);
  CHECK(word == 9);
  std::uint64_t wide = 0;
  store_relaxed(&wide, ~std::uint64_t{0});
  CHECK(load_acquire(&wide) == ~std::uint64_t{0} && load_relaxed(&wide) == ~std::uint64_t{0});
}

}  // namespace

int main() {
  a_read_has_every_field_in_its_place();
  a_write_with_sgl_and_a_flush();
  a_completion_is_taken_by_its_phase();
  statuses_have_errnos();
  registers_are_read_as_the_specification_has_them();
  ordered_words_hold_what_was_stored();
}
