// SPDX-License-Identifier: Apache-2.0
// PRP and SGL, private and shared, resolved by a drive that was written without them.
#include <algorithm>
#include <cstdlib>
#include <random>
#include <vector>

#include "../check.hpp"
#include "bus_model.hpp"
#include "tutti/runtime/nvme/core/data_window.hpp"

using namespace tutti::runtime::nvme;
using bus_model::Bus;
using bus_model::same_bytes;
using bus_model::scattered_runs;

namespace {

constexpr std::uint64_t kListIova = 0x7000'0000;
constexpr std::uint64_t kTableIova = 0x5000'0000;

IovaMap map_of(const std::vector<IovaRun>& runs) {
  return {runs.data(), static_cast<std::uint32_t>(runs.size())};
}

struct AlignedWords {
  AlignedWords(std::uint64_t bytes, std::uint64_t page)
      : words(static_cast<std::uint64_t*>(std::aligned_alloc(page, bytes))), size(bytes) {
    std::fill_n(words, bytes / 8, 0xdead'dead'dead'deadU);
  }
  ~AlignedWords() { std::free(words); }
  AlignedWords(const AlignedWords&) = delete;
  AlignedWords& operator=(const AlignedWords&) = delete;
  std::uint64_t* words;
  std::uint64_t size;
};

void addresses_are_translated_as_the_runs_say() {
  std::mt19937_64 random(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<IovaRun> runs = scattered_runs(random, 4096, 1 + random() % 40, 0.5);
    if (runs.size() > 2) {
      runs.erase(runs.begin() + 1);  // a hole
    }
    for (int i = 0; i < 50; ++i) {
      const std::uint64_t place = random() % (42 * 4096);
      std::uint64_t iova = 1;
      const std::uint64_t left = translate(map_of(runs), place, iova);
      const auto home = std::find_if(runs.begin(), runs.end(), [&](const IovaRun& run) {
        return run.begin <= place && place < run.begin + run.size;
      });
      CHECK((left != 0) == (home != runs.end()));
      if (home != runs.end()) {
        CHECK(iova == home->iova + place - home->begin && left == home->begin + home->size - place);
      } else {
        CHECK(iova == 1);
      }
    }
  }
  std::uint64_t iova = 0;
  CHECK(translate(IovaMap{}, 0, iova) == 0);
}

void private_lists(std::uint32_t page_shift) {
  std::mt19937_64 random(page_shift);
  const std::uint64_t page = std::uint64_t{1} << page_shift;
  for (int round = 0; round < 1500; ++round) {
    const std::uint64_t pages = round % 9 == 0 ? 1 + random() % 2000 : 1 + random() % 12;
    const auto runs = scattered_runs(random, page, pages, round % 2 == 0 ? 0.0 : 0.7);
    const std::uint64_t begin = (random() % (pages * page)) / 512 * 512;
    const std::uint64_t length = std::max<std::uint64_t>(512, random() % (pages * page - begin) / 512 * 512);
    const AlignedWords list(8 * page, page);
    Bus bus;
    bus.add(kListIova, list.words, list.size);
    DataPointer pointer;
    CHECK(build_prp(map_of(runs), begin, length, page_shift, {list.words, kListIova, 8}, pointer));
    const auto pieces = bus.resolve(pointer, length, page);
    CHECK(pieces && same_bytes(*pieces, runs, begin, length));
    // One byte beyond the window is refused, and so is a list that is one page short.
    CHECK(!build_prp(map_of(runs), begin, pages * page - begin + 1, page_shift, {list.words, kListIova, 8},
                     pointer));
  }
}

void a_private_list_that_is_too_small_is_refused() {
  const std::vector<IovaRun> runs{{0, 2048 * 4096, 0x10000000}};
  const AlignedWords list(4 * 4096, 4096);
  DataPointer pointer;
  // The first page is in PRP1. 512 entries fill a list page, 511 and a pointer and 512 fill two.
  CHECK(build_prp(map_of(runs), 0, 513 * 4096, 12, {list.words, kListIova, 1}, pointer));
  CHECK(!build_prp(map_of(runs), 0, 514 * 4096, 12, {list.words, kListIova, 1}, pointer));
  CHECK(build_prp(map_of(runs), 0, 1024 * 4096, 12, {list.words, kListIova, 2}, pointer));
  CHECK(!build_prp(map_of(runs), 0, 1025 * 4096, 12, {list.words, kListIova, 2}, pointer));
}

void memory_off_its_pages_is_refused() {
  DataPointer pointer;
  const std::vector<IovaRun> runs{{0, 8192, 0x10000000 + 512}, {8192, 4096, 0x20000000}};
  const AlignedWords list(4096, 4096);
  CHECK(build_prp(map_of(runs), 0, 1024, 12, {list.words, kListIova, 1}, pointer));
  CHECK(!build_prp(map_of(runs), 0, 12288, 12, {list.words, kListIova, 1}, pointer));
}

void private_segments() {
  std::mt19937_64 random(7);
  for (int round = 0; round < 3000; ++round) {
    const std::uint64_t granules = 1 + random() % 60;
    const auto runs = scattered_runs(random, 4096, granules, 0.3);
    const std::uint64_t begin = random() % (granules * 4096);
    const std::uint64_t length = 1 + random() % (granules * 4096 - begin);
    std::vector<SglDescriptor> descriptors(200);
    SglListMemory list{descriptors.data(), kListIova, 200, static_cast<std::uint32_t>(2 + random() % 9)};
    Bus bus;
    bus.add(kListIova, descriptors.data(), descriptors.size() * sizeof(SglDescriptor));
    DataPointer pointer;
    CHECK(build_sgl(map_of(runs), begin, length, list, pointer));
    const auto pieces = bus.resolve(pointer, length, 4096);
    CHECK(pieces && same_bytes(*pieces, runs, begin, length));
    const std::uint32_t needed = count_runs(map_of(runs), begin, length);
    if (needed > 1) {
      list.count = needed - 1;
      CHECK(!build_sgl(map_of(runs), begin, length, list, pointer));
    } else {
      CHECK((pointer.high >> 56) == kSglDataBlock);
    }
    CHECK(!build_sgl(map_of(runs), begin, granules * 4096 - begin + 1, list, pointer));
  }
}

/// Every slice of a window, through its shared table: no list of its own, and the drive finds its bytes.
void check_slices(const DataWindow& window, const Bus& bus, const std::vector<IovaRun>& runs,
                  std::uint64_t begin, std::uint64_t length, std::uint64_t& commands) {
  const std::uint64_t page = std::uint64_t{1} << window.page_shift;
  for (std::uint64_t done = 0; done < length;) {
    DataPointer pointer;
    const std::uint64_t part = describe(window, begin + done, length - done, pointer);
    CHECK(part > 0 && part <= length - done);
    const auto pieces = bus.resolve(pointer, part, page);
    CHECK(pieces && same_bytes(*pieces, runs, begin + done, part));
    done += part;
    ++commands;
  }
}

void slices_share_one_prp_list(std::uint32_t page_shift) {
  std::mt19937_64 random(page_shift);
  const std::uint64_t page = std::uint64_t{1} << page_shift;
  const std::uint64_t pages = 3 * prp_table_slots(page_shift) + 17;
  for (const double together : {0.0, 0.9, 1.0}) {
    const auto runs = scattered_runs(random, page, pages, together);
    const AlignedWords table(prp_table_bytes(pages, page_shift), page);
    CHECK(write_prp_table(map_of(runs), pages, page_shift, table.words, kTableIova));
    Bus bus;
    bus.add(kTableIova, table.words, table.size);
    DataWindow window;
    window.map = map_of(runs);
    window.size = pages * page;
    window.page_shift = page_shift;
    window.prp_table_iova = kTableIova;
    std::uint64_t commands = 0;
    std::uint64_t slices = 0;
    for (std::uint64_t edge = 1; edge <= 3; ++edge) {  // around every boundary of the list
      const std::uint64_t middle = edge * prp_table_slots(page_shift);
      for (std::uint64_t first = middle - 5; first < std::min(middle + 5, pages); ++first) {
        for (std::uint64_t count = 1; count <= 10 && first + count <= pages; ++count, ++slices) {
          check_slices(window, bus, runs, first * page, count * page, commands);
        }
      }
    }
    CHECK(commands > slices && commands < slices + slices / 5);  // some needed a second command
    for (int round = 0; round < 2000; ++round, ++slices) {
      const std::uint64_t begin = random() % (pages * page) / 512 * 512;
      const std::uint64_t length =
          std::max<std::uint64_t>(512, random() % (pages * page - begin) / 512 * 512);
      check_slices(window, bus, runs, begin, length, commands);
    }
  }
}

void without_a_table_a_command_takes_two_pages() {
  const std::vector<IovaRun> runs{{0, 64 * 4096, 0x10000000}};
  DataWindow window;
  window.map = map_of(runs);
  window.size = 64 * 4096;
  DataPointer pointer;
  CHECK(describe(window, 0, 64 * 4096, pointer) == 2 * 4096);
  CHECK(pointer.low == 0x10000000 && pointer.high == 0x10001000);
  CHECK(describe(window, 512, 64 * 4096 - 512, pointer) == 2 * 4096 - 512);
  CHECK(describe(window, 64 * 4096, 4096, pointer) == 0);
}

void slices_share_one_sgl_table() {
  std::mt19937_64 random(3);
  constexpr std::uint64_t granule = 65536;
  for (int round = 0; round < 60; ++round) {
    const std::uint64_t granules = 1 + random() % 50;
    const auto runs = scattered_runs(random, granule, granules, round % 3 * 0.5);
    std::vector<SglDescriptor> table(granules);
    CHECK(sgl_table_bytes(granules * granule, 16) == granules * 16);
    CHECK(write_sgl_table(map_of(runs), granules * granule, 16, table.data()));
    Bus bus;
    bus.add(kTableIova, table.data(), granules * 16);
    DataWindow window;
    window.map = map_of(runs);
    window.size = granules * granule;
    window.sgl_table_iova = kTableIova;
    window.use_sgl = true;
    for (int i = 0; i < 100; ++i) {
      std::uint64_t commands = 0;
      const std::uint64_t first = random() % granules;
      const std::uint64_t count = 1 + random() % (granules - first);
      check_slices(window, bus, runs, first * granule, count * granule, commands);
      CHECK(commands == 1);  // whole granules need one command, however scattered
      const std::uint64_t begin = random() % (granules * granule) / 4096 * 4096;
      const std::uint64_t length =
          std::max<std::uint64_t>(4096, random() % (granules * granule - begin) / 4096 * 4096);
      commands = 0;
      check_slices(window, bus, runs, begin, length, commands);
      CHECK(commands <= 3);  // a head, whole granules, a tail
    }
  }
}

/// 60 GB in 64 KiB pieces, the worst that a GPU's memory comes in: 14 MiB of SGL, and 115 MiB as one PRP
/// list, where a list page for each 64 KiB slice would be 3.6 GiB.
void descriptors_of_60_gigabytes_are_small() {
  constexpr std::uint64_t window = 60'000'000'000 / 65536 * 65536;
  static_assert(window / 65536 * 4096 > 3'700'000'000);
  CHECK(sgl_table_bytes(window, 16) == window / 65536 * 16);
  CHECK(sgl_table_bytes(window, 16) <= 20'000'000);
  CHECK(prp_table_bytes(window / 4096, 12) <= 118'000'000);
}

}  // namespace

int main() {
  addresses_are_translated_as_the_runs_say();
  private_lists(12);
  private_lists(13);
  a_private_list_that_is_too_small_is_refused();
  memory_off_its_pages_is_refused();
  private_segments();
  slices_share_one_prp_list(12);
  slices_share_one_prp_list(13);
  without_a_table_a_command_takes_two_pages();
  slices_share_one_sgl_table();
  descriptors_of_60_gigabytes_are_small();
}
