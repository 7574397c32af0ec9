// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/stable/library.h>

#include "checks.h"
#include "checksum.h"
#include "transfer.h"

namespace tutti::kv {
namespace {

struct Arguments {
  Bytes pages;
  Bytes window;
  TransferPlan plan;
};

Arguments check_arguments(const Tensor& pages, const PagedLayout& layout, const Tensor& block_ids,
                          const Tensor& window, const Tensor& slots, std::int64_t slot_bytes,
                          std::int64_t threads, Direction direction) {
  const Bytes page_memory = require_bytes(pages, "pages");
  const Bytes window_memory = require_bytes(window, "window");
  require_disjoint(page_memory, window_memory);
  require_threads(threads);
  check_layout(layout, page_memory.size);
  const auto slot_ids = require_ids(slots, "slots");
  const std::int64_t columns = require_block_ids(block_ids, static_cast<std::int64_t>(slot_ids.size()));
  const std::span ids{static_cast<const std::int64_t*>(block_ids.data_ptr()),
                      static_cast<std::size_t>(block_ids.numel())};
  return {page_memory, window_memory,
          make_transfer_plan(layout, {window_memory.size, slot_bytes}, slot_ids, ids, columns, direction)};
}

void gather(const Tensor& pages, std::int64_t storage_offset, std::int64_t block_stride,
            std::int64_t page_bytes, std::int64_t num_blocks, const Tensor& block_ids, const Tensor& window,
            const Tensor& slots, std::int64_t slot_bytes, const Tensor& checksums, std::int64_t num_threads) {
  const PagedLayout layout{storage_offset, block_stride, page_bytes, num_blocks};
  const auto [page_memory, window_memory, plan] =
      check_arguments(pages, layout, block_ids, window, slots, slot_bytes, num_threads, Direction::kGather);
  require_per_segment(checksums, ScalarType::Long, "checksums", plan.segments());
  gather_cpu(plan, page_memory.data, window_memory.data, static_cast<std::int64_t*>(checksums.data_ptr()),
             num_threads);
}

void scatter(const Tensor& window, const Tensor& slots, std::int64_t slot_bytes, const Tensor& pages,
             std::int64_t storage_offset, std::int64_t block_stride, std::int64_t page_bytes,
             std::int64_t num_blocks, const Tensor& block_ids, const Tensor& checksums, const Tensor& matched,
             std::int64_t num_threads) {
  const PagedLayout layout{storage_offset, block_stride, page_bytes, num_blocks};
  const auto [page_memory, window_memory, plan] =
      check_arguments(pages, layout, block_ids, window, slots, slot_bytes, num_threads, Direction::kScatter);
  require_per_segment(checksums, ScalarType::Long, "checksums", plan.segments());
  require_per_segment(matched, ScalarType::Bool, "matched", plan.segments());
  scatter_cpu(plan, window_memory.data, static_cast<const std::int64_t*>(checksums.data_ptr()),
              page_memory.data, static_cast<bool*>(matched.data_ptr()), num_threads);
}

void checksum_out(const Tensor& data, const Tensor& result) {
  const Bytes bytes = require_bytes(data, "data");
  require_per_segment(result, ScalarType::Long, "result", 1);
  *static_cast<std::int64_t*>(result.data_ptr()) =
      static_cast<std::int64_t>(checksum(bytes.data, bytes.size));
}

}  // namespace
}  // namespace tutti::kv

STABLE_TORCH_LIBRARY(tutti_kv_kernels, m) {
  m.def(
      "gather(Tensor pages, int storage_offset, int block_stride, int page_bytes, int num_blocks, Tensor "
      "block_ids, "
      "Tensor(a!) window, Tensor slots, int slot_bytes, Tensor(b!) checksums, int num_threads) -> ()");
  m.def(
      "scatter(Tensor window, Tensor slots, int slot_bytes, Tensor(a!) pages, int storage_offset, int "
      "block_stride, "
      "int page_bytes, int num_blocks, Tensor block_ids, Tensor checksums, Tensor(b!) matched, int "
      "num_threads) -> ()");
  m.def("checksum(Tensor data, Tensor(a!) result) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(tutti_kv_kernels, CPU, m) {
  m.impl("gather", TORCH_BOX(&tutti::kv::gather));
  m.impl("scatter", TORCH_BOX(&tutti::kv::scatter));
  m.impl("checksum", TORCH_BOX(&tutti::kv::checksum_out));
}
