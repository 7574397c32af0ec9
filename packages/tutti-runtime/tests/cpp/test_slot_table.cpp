// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <set>

#include "check.hpp"
#include "tutti/runtime/detail/slot_table.hpp"

using namespace tutti::runtime::detail;

namespace {

void handles_never_repeat() {
  SlotTable<int> table(HandleKind::kTarget, 5);
  std::set<std::uint64_t> seen;
  for (int i = 0; i < 1000; ++i) {
    const auto handle = table.insert(int{i});
    CHECK(handle && seen.insert(*handle).second);
    CHECK(*table.find(*handle) == i);
    table.erase(*handle);
    CHECK(table.find(*handle) == nullptr);
  }
  CHECK(table.size() == 0);
}

void kinds_and_runtimes_are_told_apart() {
  SlotTable<int> targets(HandleKind::kTarget, 5);
  auto memories = targets.sibling<int>(HandleKind::kMemory);
  SlotTable<int> others(HandleKind::kTarget, 6);
  const auto handle = targets.insert(1);
  CHECK(memories.insert(2) && others.insert(3));
  CHECK(memories.find(*handle) == nullptr);
  CHECK(others.find(*handle) == nullptr);
  for (int bit = 0; bit < 64; ++bit) {
    CHECK(targets.find(*handle ^ (std::uint64_t{1} << bit)) == nullptr);
  }
  CHECK(targets.find(0) == nullptr);
}

// A used-up place must be retired: a second round of its generations would revive handles.
void a_place_is_retired_after_its_last_generation() {
  SlotTable<char, 100> table(HandleKind::kBatch, 1);
  const auto first = table.insert('a');
  table.erase(*first);
  std::uint64_t last = 0;
  for (std::uint32_t i = 0; i < 105; ++i) {
    const auto handle = table.insert('b');
    CHECK(*handle != *first);
    last = *handle;
    table.erase(last);
  }
  CHECK((last & 0xFFFFF) == 1);  // the second place
  CHECK(table.find(*first) == nullptr);
}

void a_full_table_says_so() {
  SlotTable<char> table(HandleKind::kMemory, 1);
  for (std::uint32_t i = 0; i < (1U << 20); ++i) {
    CHECK(table.insert('x'));
  }
  CHECK(!table.insert('y'));
}

}  // namespace

int main() {
  handles_never_repeat();
  kinds_and_runtimes_are_told_apart();
  a_place_is_retired_after_its_last_generation();
  a_full_table_says_so();
}
