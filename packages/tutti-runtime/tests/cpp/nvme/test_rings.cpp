// SPDX-License-Identifier: Apache-2.0
// Rings and identifiers against a model made of standard containers.
#include <deque>
#include <random>
#include <set>
#include <vector>

#include "../check.hpp"
#include "tutti/runtime/nvme/core/command_ids.hpp"
#include "tutti/runtime/nvme/core/ring.hpp"

using namespace tutti::runtime::nvme;

namespace {

void submissions_come_out_in_order() {
  std::mt19937_64 random(1);
  for (const std::uint32_t depth : {2U, 3U, 7U, 64U}) {
    std::vector<Command> memory(depth);
    SubmissionRing ring{memory.data(), depth};
    std::deque<std::uint32_t> model;  // what the drive has not fetched, by nsid
    std::uint32_t next = 1;
    std::uint32_t drive_head = 0;
    for (int step = 0; step < 20000; ++step) {
      CHECK(ring.space() == depth - 1 - model.size());
      if (random() % 2 == 0 && ring.space() > 0) {
        ring.push(make_flush(next, 0));
        model.push_back(next++);
      } else if (!model.empty()) {
        const std::uint64_t count = 1 + random() % model.size();
        for (std::uint64_t i = 0; i < count; ++i) {
          CHECK(memory[drive_head].nsid == model.front());
          model.pop_front();
          drive_head = (drive_head + 1) % depth;
        }
        CHECK(ring.set_head(drive_head));
      }
    }
  }
}

void a_head_outside_of_what_is_used_is_refused() {
  std::vector<Command> memory(8);
  SubmissionRing ring{memory.data(), 8, 6, 6};
  ring.push(make_flush(1, 0));
  ring.push(make_flush(1, 0));
  ring.push(make_flush(1, 0));  // entries 6, 7, 0
  for (const std::uint32_t bad : {2U, 3U, 4U, 5U, 8U, 0xffffU}) {
    CHECK(!ring.set_head(bad) && ring.head == 6);
  }
  CHECK(ring.set_head(7) && ring.space() == 5 && ring.set_head(1) && ring.space() == 7);
}

void completions_are_seen_once_and_in_order() {
  std::mt19937_64 random(2);
  for (const std::uint32_t depth : {2U, 3U, 16U}) {
    std::vector<Completion> memory(depth);
    CompletionRing ring{memory.data(), depth};
    std::deque<std::uint32_t> model;
    std::uint32_t tail = 0;
    bool phase = true;
    std::uint32_t next = 1;
    for (int step = 0; step < 20000; ++step) {
      Completion entry{};
      if (random() % 2 == 0 && model.size() + 1 < depth) {
        memory[tail] = {next, 0, 0, phase ? 1U << 16 : 0U};
        model.push_back(next++);
        tail = (tail + 1) % depth;
        phase = tail == 0 ? !phase : phase;
      } else if (model.empty()) {
        CHECK(!ring.pop(entry));
      } else {
        CHECK(ring.pop(entry) && entry.dw0 == model.front());
        model.pop_front();
      }
    }
  }
}

void room_in_the_smaller_queue_bounds_what_is_under_way() {
  CHECK(max_commands(64, 64) == 63 && max_commands(64, 8) == 7 && max_commands(2, 64) == 1);
}

void identifiers_belong_to_one_command() {
  std::mt19937_64 random(3);
  for (const std::uint32_t capacity : {1U, 2U, 5U, 63U, 64U, 1023U, 16384U}) {
    std::vector<std::uint16_t> ids(capacity);
    std::vector<std::uint16_t> free_slots(capacity);
    std::vector<std::uint8_t> in_use(capacity);
    CommandIds owner{ids.data(), free_slots.data(), in_use.data(), capacity};
    owner.reset();
    std::set<std::uint16_t> model;
    for (int step = 0; step < 5000; ++step) {
      if (random() % 2 == 0) {
        const std::uint16_t id = owner.take();
        CHECK((id == CommandIds::kNone) == (model.size() == capacity));
        if (id != CommandIds::kNone) {
          CHECK(model.insert(id).second && owner.owns(id));
        }
      } else if (!model.empty()) {
        const auto place = model.lower_bound(static_cast<std::uint16_t>(random()));
        const std::uint16_t id = place == model.end() ? *model.begin() : *place;
        owner.give_back(id);
        model.erase(id);
        CHECK(!owner.owns(id));
        const auto probe = static_cast<std::uint16_t>(random());
        CHECK(owner.owns(probe) == model.contains(probe));
      }
    }
  }
}

// A late completion of a command that was given up must not be taken for the next command of its slot.
void the_next_command_of_a_slot_has_another_identifier() {
  std::uint16_t id_memory[4];
  std::uint16_t free_memory[4];
  std::uint8_t in_use[4];
  CommandIds owner{id_memory, free_memory, in_use, 4};
  owner.reset();
  std::set<std::uint16_t> seen;
  for (int i = 0; i < 1000; ++i) {
    const std::uint16_t id = owner.take();
    CHECK(seen.insert(id).second && id != CommandIds::kNone);
    owner.give_back(id);
    CHECK(!owner.owns(id));
    const std::uint16_t next = owner.take();
    CHECK(next != id && !owner.owns(id) && owner.slot_of(next) == owner.slot_of(id));
    seen.insert(next);
    owner.give_back(next);
  }
}

void the_reserved_identifier_is_never_handed_out() {
  std::uint16_t id_memory[1];
  std::uint16_t free_memory[1];
  std::uint8_t in_use[1];
  CommandIds owner{id_memory, free_memory, in_use, 1};
  owner.reset();
  for (int i = 0; i < 140000; ++i) {
    const std::uint16_t id = owner.take();
    CHECK(id != CommandIds::kNone && owner.owns(id));
    owner.give_back(id);
  }
}

}  // namespace

int main() {
  submissions_come_out_in_order();
  a_head_outside_of_what_is_used_is_refused();
  completions_are_seen_once_and_in_order();
  room_in_the_smaller_queue_bounds_what_is_under_way();
  identifiers_belong_to_one_command();
  the_next_command_of_a_slot_has_another_identifier();
  the_reserved_identifier_is_never_handed_out();
}
