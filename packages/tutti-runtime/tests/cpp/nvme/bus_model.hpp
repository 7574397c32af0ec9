// SPDX-License-Identifier: Apache-2.0
// What a drive makes of a data pointer, written from the specification and without the code under test:
// memory is bytes at bus addresses, and the result is the bus addresses of the data in order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <random>
#include <vector>

#include "tutti/runtime/nvme/core/data_pointer.hpp"
#include "tutti/runtime/nvme/core/iova_map.hpp"

namespace bus_model {

using tutti::runtime::nvme::DataPointer;
using tutti::runtime::nvme::IovaRun;

struct Piece {
  std::uint64_t iova;
  std::uint64_t length;
};

class Bus {
 public:
  void add(std::uint64_t iova, const void* memory, std::uint64_t size) {
    memories_[iova] = {static_cast<const std::byte*>(memory), size};
  }

  template <typename T>
  std::optional<T> read(std::uint64_t iova) const {
    auto place = memories_.upper_bound(iova);
    if (place == memories_.begin()) {
      return std::nullopt;
    }
    --place;
    const std::uint64_t inside = iova - place->first;
    if (inside + sizeof(T) > place->second.size) {
      return std::nullopt;
    }
    T value{};
    std::memcpy(&value, place->second.bytes + inside, sizeof value);
    return value;
  }

  /// Empty where a drive would report an error.
  std::optional<std::vector<Piece>> resolve(const DataPointer& pointer, std::uint64_t length,
                                            std::uint64_t page) const {
    return pointer.psdt == 0 ? resolve_prp(pointer, length, page) : resolve_sgl(pointer, length);
  }

 private:
  struct Bytes {
    const std::byte* bytes;
    std::uint64_t size;
  };

  std::optional<std::vector<Piece>> resolve_prp(const DataPointer& pointer, std::uint64_t length,
                                                std::uint64_t page) const {
    std::vector<Piece> pieces;
    const std::uint64_t first = page - pointer.low % page;
    pieces.push_back({pointer.low, std::min(first, length)});
    std::uint64_t left = length - pieces.back().length;
    if (left == 0) {
      return pieces;
    }
    if (left <= page) {
      pieces.push_back({pointer.high, left});
      return pointer.high % page == 0 ? std::optional(pieces) : std::nullopt;
    }
    std::uint64_t entry_at = pointer.high;
    if (entry_at % 8 != 0) {
      return std::nullopt;
    }
    while (left > 0) {
      const auto entry = read<std::uint64_t>(entry_at);
      if (!entry || *entry % page != 0) {
        return std::nullopt;
      }
      if (entry_at % page == page - 8 && left > page) {
        entry_at = *entry;
        continue;
      }
      pieces.push_back({*entry, std::min(left, page)});
      left -= pieces.back().length;
      entry_at += 8;
    }
    return pieces;
  }

  std::optional<std::vector<Piece>> resolve_sgl(const DataPointer& pointer, std::uint64_t length) const {
    std::vector<Piece> pieces;
    std::uint64_t address = pointer.low;
    std::uint32_t size = static_cast<std::uint32_t>(pointer.high);
    std::uint8_t type = static_cast<std::uint8_t>(pointer.high >> 56);
    std::uint64_t total = 0;
    if (type == 0x00) {
      pieces.push_back({address, size});
      return size == length ? std::optional(pieces) : std::nullopt;
    }
    while (true) {
      const bool last = type == 0x30;
      if ((type != 0x20 && !last) || size == 0 || size % 16 != 0) {
        return std::nullopt;
      }
      const std::uint32_t count = size / 16;
      for (std::uint32_t i = 0; i < count; ++i) {
        const auto low = read<std::uint64_t>(address + 16 * i);
        const auto high = read<std::uint64_t>(address + 16 * i + 8);
        if (!low || !high) {
          return std::nullopt;
        }
        const auto kind = static_cast<std::uint8_t>(*high >> 56);
        if (kind == 0x00) {
          pieces.push_back({*low, *high & 0xffffffffU});
          total += pieces.back().length;
          continue;
        }
        if (last || i + 1 != count) {
          return std::nullopt;
        }
        address = *low;
        size = static_cast<std::uint32_t>(*high);
        type = kind;
        break;
      }
      if (last) {
        return total == length ? std::optional(pieces) : std::nullopt;
      }
    }
  }

  std::map<std::uint64_t, Bytes> memories_;
};

/// Whether the pieces are, byte for byte, the bus addresses of a range.
inline bool same_bytes(const std::vector<Piece>& pieces, const std::vector<IovaRun>& runs,
                       std::uint64_t begin, std::uint64_t length) {
  std::uint64_t done = 0;
  for (const Piece& piece : pieces) {
    for (std::uint64_t inside = 0; inside < piece.length;) {
      auto home = std::upper_bound(runs.begin(), runs.end(), begin + done,
                                   [](std::uint64_t place, const IovaRun& run) { return place < run.begin; });
      if (home == runs.begin()) {
        return false;
      }
      --home;
      if (begin + done >= home->begin + home->size ||
          home->iova + (begin + done - home->begin) != piece.iova + inside) {
        return false;
      }
      const std::uint64_t step = std::min(piece.length - inside, home->begin + home->size - begin - done);
      inside += step;
      done += step;
    }
  }
  return done == length;
}

/// A window of `granules` granules, scattered: neighbours are one run with probability `together`.
inline std::vector<IovaRun> scattered_runs(std::mt19937_64& random, std::uint64_t granule,
                                           std::uint64_t granules, double together) {
  std::vector<IovaRun> runs;
  std::uint64_t iova = 0x10'0000'0000;
  std::bernoulli_distribution join(together);
  for (std::uint64_t i = 0; i < granules; ++i) {
    if (!runs.empty() && join(random)) {
      runs.back().size += granule;
    } else {
      iova += granule * (1 + random() % 7);
      runs.push_back({i * granule, granule, iova});
    }
    iova += granule;
  }
  return runs;
}

}  // namespace bus_model
