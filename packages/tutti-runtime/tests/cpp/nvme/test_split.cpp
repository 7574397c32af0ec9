// SPDX-License-Identifier: Apache-2.0
// A request split into commands moves every block exactly once, and no command breaks a limit.
#include <algorithm>
#include <random>
#include <vector>

#include "../check.hpp"
#include "bus_model.hpp"
#include "tutti/runtime/nvme/core/split.hpp"

using namespace tutti::runtime::nvme;

namespace {

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kTableIova = 0x5000'0000;

/// Random extents over `blocks` blocks of a target, in the target's order, anywhere on the namespace.
std::vector<BlockExtent> random_extents(std::mt19937_64& random, std::uint64_t blocks, std::uint64_t step) {
  std::vector<BlockExtent> extents;
  for (std::uint64_t begin = 0; begin < blocks;) {
    const std::uint64_t size = std::min(blocks - begin, step * (1 + random() % 200));
    extents.push_back({begin, random() % 1'000'000, size});
    begin += size;
  }
  return extents;
}

void a_block_is_found_where_its_extent_says() {
  std::mt19937_64 random(1);
  for (int round = 0; round < 300; ++round) {
    auto extents = random_extents(random, 2000, 1);
    if (extents.size() > 2) {
      extents.erase(extents.begin() + static_cast<std::ptrdiff_t>(random() % extents.size()));
    }
    const ExtentTable table{extents.data(), static_cast<std::uint32_t>(extents.size())};
    for (int i = 0; i < 100; ++i) {
      const std::uint64_t block = random() % 2100;
      std::uint64_t lba = 0;
      const std::uint64_t left = find_block(table, block, lba);
      const auto home = std::find_if(extents.begin(), extents.end(), [&](const BlockExtent& extent) {
        return extent.begin <= block && block < extent.begin + extent.blocks;
      });
      CHECK((left != 0) == (home != extents.end()));
      CHECK(left == 0 ||
            (lba == home->lba + block - home->begin && left == home->begin + home->blocks - block));
    }
  }
}

struct Case {
  std::vector<std::vector<BlockExtent>> extents;
  std::vector<ShardPlace> shards;
  std::vector<IovaRun> runs;
  std::vector<std::uint64_t> table;
  std::vector<DataWindow> windows;
  Stripe stripe;
};

Case make_case(std::mt19937_64& random) {
  constexpr std::uint64_t memory_pages = 1200;
  Case made;
  made.stripe.shards = 1 + random() % 4;
  made.stripe.unit = kPage << (random() % 9);
  made.stripe.rotation = random() % made.stripe.shards;
  made.runs = bus_model::scattered_runs(random, kPage, memory_pages, 0.8);
  made.table.resize(prp_table_bytes(memory_pages, 12) / 8);
  const IovaMap map{made.runs.data(), static_cast<std::uint32_t>(made.runs.size())};
  CHECK(write_prp_table(map, memory_pages, 12, made.table.data(), kTableIova));
  for (std::uint32_t i = 0; i < made.stripe.shards; ++i) {
    ShardPlace shard;
    shard.block_shift = random() % 2 == 0 ? 9 : 12;
    shard.max_bytes = kPage << (random() % 10);
    shard.boundary_blocks = random() % 3 == 0 ? 1U << (random() % 9 + 3) : 0;
    made.extents.push_back(random_extents(random, (std::uint64_t{8192} * kPage) >> shard.block_shift,
                                          4096U >> shard.block_shift));
    made.shards.push_back(shard);
    DataWindow window;
    window.map = map;
    window.size = memory_pages * kPage;
    window.prp_table_iova = random() % 3 == 0 ? 0 : kTableIova;
    window.use_sgl = random() % 3 == 0;
    made.windows.push_back(window);
  }
  for (std::size_t i = 0; i < made.shards.size(); ++i) {
    made.shards[i].extents = {made.extents[i].data(), static_cast<std::uint32_t>(made.extents[i].size())};
  }
  return made;
}

/// Block of the namespace that byte `offset` of the target is on, found the slow way.
std::pair<std::uint32_t, std::uint64_t> place_of(const Case& made, std::uint64_t offset) {
  const std::uint64_t unit = offset / made.stripe.unit;
  const bool alone = made.stripe.shards == 1;
  const auto shard =
      alone ? 0U : static_cast<std::uint32_t>((unit + made.stripe.rotation) % made.stripe.shards);
  const std::uint64_t inside =
      alone ? offset : unit / made.stripe.shards * made.stripe.unit + offset % made.stripe.unit;
  const std::uint64_t block = inside >> made.shards[shard].block_shift;
  for (const BlockExtent& extent : made.extents[shard]) {
    if (extent.begin <= block && block < extent.begin + extent.blocks) {
      return {shard, extent.lba + block - extent.begin};
    }
  }
  CHECK(false);
  return {};
}

void check_piece(const Case& made, const CommandPiece& piece, std::uint64_t target_offset) {
  const ShardPlace& shard = made.shards[piece.shard];
  const std::uint64_t block_bytes = std::uint64_t{1} << shard.block_shift;
  CHECK(piece.length == piece.blocks * block_bytes && piece.length <= shard.max_bytes);
  CHECK(piece.blocks >= 1 && piece.blocks <= kMaxBlocksPerCommand);
  for (std::uint64_t i = 0; i < piece.blocks; ++i) {
    CHECK(place_of(made, target_offset + i * block_bytes) == std::pair(piece.shard, piece.slba + i));
  }
  if (shard.boundary_blocks != 0) {
    CHECK(piece.slba / shard.boundary_blocks == (piece.slba + piece.blocks - 1) / shard.boundary_blocks);
  }
  bus_model::Bus bus;
  bus.add(kTableIova, made.table.data(), made.table.size() * 8);
  const auto where = bus.resolve(piece.data, piece.length, kPage);
  CHECK(where && bus_model::same_bytes(*where, made.runs, piece.memory_offset, piece.length));
}

void requests_are_covered_exactly() {
  std::mt19937_64 random(4);
  for (int round = 0; round < 60; ++round) {
    const Case made = make_case(random);
    for (int i = 0; i < 20; ++i) {
      Splitter splitter;
      splitter.stripe = made.stripe;
      splitter.shards = made.shards.data();
      splitter.windows = made.windows.data();
      const std::uint64_t length = kPage * (1 + random() % 300);
      splitter.target_offset = kPage * (random() % (8192 - 300));
      splitter.memory_offset = kPage * (random() % (1200 - 300));
      splitter.left = length;
      const std::uint64_t target_begin = splitter.target_offset;
      const std::uint64_t memory_begin = splitter.memory_offset;
      std::uint64_t done = 0;
      CommandPiece piece;
      while (splitter.next(piece) == SplitStep::kPiece) {
        CHECK(piece.memory_offset == memory_begin + done);
        check_piece(made, piece, target_begin + done);
        done += piece.length;
      }
      CHECK(done == length && splitter.next(piece) == SplitStep::kDone);
    }
  }
}

void what_has_no_block_or_no_memory_is_said() {
  std::mt19937_64 random(5);
  const Case made = make_case(random);
  Splitter splitter;
  splitter.stripe = {0, 1, 0};
  splitter.shards = made.shards.data();
  splitter.windows = made.windows.data();
  CommandPiece piece;
  splitter.target_offset = 8192 * kPage;
  splitter.left = kPage;
  CHECK(splitter.next(piece) == SplitStep::kNoBlock);
  splitter.target_offset = 0;
  splitter.memory_offset = 1200 * kPage;
  CHECK(splitter.next(piece) == SplitStep::kNoMemory);
}

}  // namespace

int main() {
  a_block_is_found_where_its_extent_says();
  requests_are_covered_exactly();
  what_has_no_block_or_no_memory_is_said();
}
