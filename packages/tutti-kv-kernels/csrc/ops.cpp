// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "checks.h"
#include "checksum.h"
#include "transfer.h"
#include "written_once.h"

namespace tutti::kv {
namespace {

struct Arguments {
  std::vector<std::byte*> storages;
  std::byte* window;
  TransferPlan plan;

  [[nodiscard]] std::int64_t segments() const { return static_cast<std::int64_t>(plan.segments.size()); }
};

struct Storages {
  std::vector<std::byte*> data;
  std::vector<std::int64_t> sizes;
};

Storages check_storages(const std::vector<Tensor>& tensors, const Bytes& window) {
  Storages storages;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Bytes bytes = require_bytes(tensors[i], "pages");
    require_disjoint(bytes, window, i);
    storages.data.push_back(bytes.data);
    storages.sizes.push_back(bytes.size);
  }
  return storages;
}

// What both directions have in common. The names are those of the schema below.
Arguments check_arguments(const std::vector<Tensor>& tensors, const Tensor& planes,
                          const std::optional<Tensor>& layers, const Tensor& block_ids, std::int64_t repeats,
                          const std::optional<Tensor>& token_ranges, const Tensor& window,
                          const Tensor& slots, std::int64_t slot_bytes, std::int64_t threads,
                          Direction direction, bool missing_blocks) {
  const Bytes window_memory = require_bytes(window, "window");
  Storages storages = check_storages(tensors, window_memory);
  require_threads(threads);
  Segments segments{
      .slots = require_ids(slots, "slots"), .layers = {}, .block_ids = {}, .columns = 0, .token_ranges = {}};
  const auto count = static_cast<std::int64_t>(segments.slots.size());
  if (layers) {
    require_per_segment(*layers, ScalarType::Long, "layers", count);
    segments.layers = require_ids(*layers, "layers");
  }
  segments.columns = require_block_ids(block_ids, count, repeats);
  segments.block_ids = {static_cast<const std::int64_t*>(block_ids.data_ptr()),
                        static_cast<std::size_t>(block_ids.numel())};
  if (token_ranges) {
    segments.token_ranges = require_pairs(*token_ranges, "token_ranges", count);
  }
  return {std::move(storages.data), window_memory.data,
          make_transfer_plan(make_layers(require_planes(planes), storages.sizes),
                             {window_memory.size, slot_bytes}, segments, direction, missing_blocks)};
}

void gather(const std::vector<Tensor>& storages, const Tensor& planes, const std::optional<Tensor>& layers,
            const Tensor& block_ids, std::int64_t repeats, const std::optional<Tensor>& token_ranges,
            bool missing_blocks, const Tensor& window, const Tensor& slots, std::int64_t slot_bytes,
            const Tensor& checksums, const std::optional<Tensor>& status, std::int64_t workers) {
  const Arguments arguments =
      check_arguments(storages, planes, layers, block_ids, repeats, token_ranges, window, slots, slot_bytes,
                      workers, Direction::kGather, missing_blocks);
  require_per_segment(checksums, ScalarType::Long, "checksums", arguments.segments());
  if (status) {
    // Whatever could be reported has been refused.
    require_per_segment(*status, ScalarType::Int, "status", arguments.segments());
    std::fill_n(static_cast<std::int32_t*>(status->data_ptr()), arguments.segments(),
                static_cast<std::int32_t>(Status::kOk));
  }
  gather_cpu(arguments.plan, arguments.storages, arguments.window,
             static_cast<std::int64_t*>(checksums.data_ptr()), workers);
}

void scatter(const Tensor& window, const Tensor& slots, std::int64_t slot_bytes,
             const std::vector<Tensor>& storages, const Tensor& planes, const std::optional<Tensor>& layers,
             const Tensor& block_ids, std::int64_t repeats, const std::optional<Tensor>& token_ranges,
             const Tensor& checksums, const std::optional<Tensor>& read_status, const Tensor& status,
             std::int64_t workers) {
  const Arguments arguments = check_arguments(storages, planes, layers, block_ids, repeats, token_ranges,
                                              window, slots, slot_bytes, workers, Direction::kScatter, true);
  require_planes_apart(arguments.plan, arguments.storages);
  require_per_segment(checksums, ScalarType::Long, "checksums", arguments.segments());
  require_per_segment(status, ScalarType::Int, "status", arguments.segments());
  const std::int32_t* read = nullptr;
  if (read_status) {
    require_per_segment(*read_status, ScalarType::Int, "read_status", arguments.segments());
    read = static_cast<const std::int32_t*>(read_status->data_ptr());
  }
  scatter_cpu(arguments.plan, arguments.window, static_cast<const std::int64_t*>(checksums.data_ptr()), read,
              arguments.storages, static_cast<std::int32_t*>(status.data_ptr()), workers);
}

void check_planes(const Tensor& planes, const std::vector<std::int64_t>& storage_bytes) {
  static_cast<void>(make_layers(require_planes(planes), storage_bytes));
}

void checksum_out(const Tensor& data, const Tensor& result) {
  const Bytes bytes = require_bytes(data, "data");
  require_per_segment(result, ScalarType::Long, "result", 1);
  *static_cast<std::int64_t*>(result.data_ptr()) =
      static_cast<std::int64_t>(checksum(bytes.data, bytes.size));
}

}  // namespace
}  // namespace tutti::kv

// storages     uint8 [bytes] each: the memory that planes refer to
// planes       int64 [planes, 16], always on the CPU: see geometry.h
// layers       int64 [n]: the layer of each segment; layer 0 for all when left out
// block_ids    int64 [n / repeats, columns]: segment i uses row i % (n / repeats)
// token_ranges int64 [n, 2]: the first token of a segment that takes part, and how many do
// window       uint8 [bytes]; slots int64 [n], in units of slot_bytes
// checksums    int64 [n]
// read_status  int32 [n]: a segment is looked at only where it is 0
// status       int32 [n]: see Status in transfer_plan.h
// workers      CPU: threads, at most one a segment
STABLE_TORCH_LIBRARY(tutti_kv_kernels, m) {
  m.def(
      "gather(Tensor[] storages, Tensor planes, Tensor? layers, Tensor block_ids, int repeats, "
      "Tensor? token_ranges, bool missing_blocks, Tensor(a!) window, Tensor slots, int slot_bytes, "
      "Tensor(b!) checksums, Tensor(c!)? status, int workers) -> ()");
  m.def(
      "scatter(Tensor window, Tensor slots, int slot_bytes, Tensor(a!)[] storages, Tensor planes, "
      "Tensor? layers, Tensor block_ids, int repeats, Tensor? token_ranges, Tensor checksums, "
      "Tensor? read_status, Tensor(b!) status, int workers) -> ()");
  m.def("check_planes(Tensor planes, int[] storage_bytes) -> ()");
  m.def("checksum(Tensor data, Tensor(a!) result) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(tutti_kv_kernels, CPU, m) {
  m.impl("gather", TORCH_BOX(&tutti::kv::gather));
  m.impl("scatter", TORCH_BOX(&tutti::kv::scatter));
  m.impl("check_planes", TORCH_BOX(&tutti::kv::check_planes));
  m.impl("checksum", TORCH_BOX(&tutti::kv::checksum_out));
}
