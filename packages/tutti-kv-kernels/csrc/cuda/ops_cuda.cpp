// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <cstring>
#include <optional>
#include <vector>

#include "../message.h"
#include "describe_launch.h"
#include "driver.h"
#include "enqueue.h"

namespace tutti::kv {
namespace {

// The sums of `segments` segments, from torch's allocator: it neither waits for the device nor asks the
// driver once it is warm, and knows of captured graphs.
OptionalTensor make_workspace(const Tensor& beside, std::int64_t segments) {
  const std::vector<std::int64_t> shape{segments * kWorkspaceWords};
  return torch::stable::new_zeros(beside, shape, ScalarType::Long);
}

void require_repeats(const Tensor& block_ids, const Tensor& slots, std::int64_t repeats) {
  if (block_ids.dim() != 2 || repeats < 1 || block_ids.size(0) * repeats != slots.numel()) {
    refuse("block_ids must have one row for each of the ", slots.numel(), " slots / ", repeats, " repeats");
  }
}

void gather(const std::vector<Tensor>& storages, const Tensor& planes, const OptionalTensor& layers,
            const Tensor& block_ids, std::int64_t repeats, const OptionalTensor& token_ranges,
            bool missing_blocks, const Tensor& window, const Tensor& slots, std::int64_t slot_bytes,
            const Tensor& checksums, std::int64_t /*workers*/) {
  const DeviceScope scope(require_one_device(storages));
  const DeviceGeometry geometry =
      prepare_geometry(storages, planes, window, slot_bytes, token_ranges.has_value());
  require_repeats(block_ids, slots, repeats);
  if (slots.numel() == 0) {
    return;
  }
  const OptionalTensor workspace = make_workspace(storages.front(), slots.numel());
  TransferLaunch launch = describe_launch(geometry, {.block_ids = block_ids,
                                                     .slots = slots,
                                                     .layers = layers,
                                                     .token_ranges = token_ranges,
                                                     .read_status = std::nullopt,
                                                     .checksums = checksums,
                                                     .status = std::nullopt,
                                                     .workspace = workspace});
  launch.missing_blocks = missing_blocks ? 1 : 0;
  enqueue(KernelMode::kGather, geometry, launch, 0);
}

void scatter(const Tensor& window, const Tensor& slots, std::int64_t slot_bytes,
             const std::vector<Tensor>& storages, const Tensor& planes, const OptionalTensor& layers,
             const Tensor& block_ids, std::int64_t repeats, const OptionalTensor& token_ranges,
             const Tensor& checksums, const OptionalTensor& read_status, const Tensor& status,
             std::int64_t /*workers*/) {
  const DeviceScope scope(require_one_device(storages));
  const DeviceGeometry geometry =
      prepare_geometry(storages, planes, window, slot_bytes, token_ranges.has_value());
  require_repeats(block_ids, slots, repeats);
  if (slots.numel() == 0) {
    return;
  }
  const OptionalTensor workspace = make_workspace(storages.front(), slots.numel());
  enqueue_scatter(Verify::kBefore, geometry,
                  describe_launch(geometry, {.block_ids = block_ids,
                                             .slots = slots,
                                             .layers = layers,
                                             .token_ranges = token_ranges,
                                             .read_status = read_status,
                                             .checksums = checksums,
                                             .status = status,
                                             .workspace = workspace}),
                  0);
}

void device_prepare(const std::vector<Tensor>& storages, const Tensor& planes, const Tensor& window,
                    std::int64_t slot_bytes, bool by_tokens, const Tensor& plan) {
  const DeviceScope scope(require_one_device(storages));
  require_layout(plan, ScalarType::Byte, {static_cast<std::int64_t>(sizeof(DeviceGeometry))}, "plan");
  const DeviceGeometry geometry = prepare_geometry(storages, planes, window, slot_bytes, by_tokens);
  std::memcpy(plan.data_ptr(), &geometry, sizeof(geometry));
}

const DeviceGeometry& geometry_of(const Tensor& plan) {
  if (!plan.is_cpu() || plan.numel() != static_cast<std::int64_t>(sizeof(DeviceGeometry)) ||
      static_cast<const DeviceGeometry*>(plan.data_ptr())->format != DeviceGeometry::kFormat) {
    refuse("plan is not one that device_prepare has filled");
  }
  return *static_cast<const DeviceGeometry*>(plan.data_ptr());
}

void device_gather(const Tensor& plan, const Tensor& block_ids, const Tensor& slots,
                   const OptionalTensor& layers, const OptionalTensor& token_ranges, bool missing_blocks,
                   const OptionalTensor& checksums, const OptionalTensor& status,
                   const OptionalTensor& workspace, std::int64_t num_sms) {
  const DeviceGeometry& geometry = geometry_of(plan);
  if (slots.numel() == 0) {
    return;
  }
  const DeviceScope scope(geometry.device);
  TransferLaunch launch = describe_launch(
      geometry, {block_ids, slots, layers, token_ranges, std::nullopt, checksums, status, workspace});
  launch.missing_blocks = missing_blocks ? 1 : 0;
  enqueue(KernelMode::kGather, geometry, launch, num_sms);
}

void device_scatter(const Tensor& plan, const Tensor& block_ids, const Tensor& slots,
                    const OptionalTensor& layers, const OptionalTensor& token_ranges,
                    const OptionalTensor& read_status, const OptionalTensor& checksums,
                    const OptionalTensor& status, const OptionalTensor& workspace, std::int64_t verify,
                    std::int64_t num_sms) {
  const DeviceGeometry& geometry = geometry_of(plan);
  if (slots.numel() == 0) {
    return;
  }
  const DeviceScope scope(geometry.device);
  const auto how = static_cast<Verify>(verify);
  if ((how != Verify::kNone && how != Verify::kFused && how != Verify::kBefore) ||
      (how != Verify::kNone) != checksums.has_value() || (checksums && !status)) {
    refuse(
        "verify must be 0 (none, without checksums), 1 (fused) or 2 (before); a scatter with checksums "
        "reports in status");
  }
  enqueue_scatter(how, geometry,
                  describe_launch(geometry, {block_ids, slots, layers, token_ranges, read_status, checksums,
                                             status, workspace}),
                  num_sms);
}

void device_sum(const Tensor& plan, const Tensor& block_ids, const Tensor& slots,
                const OptionalTensor& layers, const OptionalTensor& read_status, const Tensor& checksums,
                const OptionalTensor& status, const Tensor& workspace, bool of_slots, bool compare,
                std::int64_t num_sms) {
  const DeviceGeometry& geometry = geometry_of(plan);
  if (slots.numel() == 0) {
    return;
  }
  const DeviceScope scope(geometry.device);
  TransferLaunch launch = describe_launch(
      geometry, {block_ids, slots, layers, std::nullopt, read_status, checksums, status, workspace});
  launch.compare = compare ? 1 : 0;
  launch.missing_blocks = 1;
  enqueue(of_slots ? KernelMode::kSumSlots : KernelMode::kSumPages, geometry, launch, num_sms);
}

std::int64_t device_plan_bytes() { return sizeof(DeviceGeometry); }

}  // namespace
}  // namespace tutti::kv

// The operators of one prepared geometry; tutti_kv_kernels.device wraps them.
//
// plan       opaque bytes on the CPU that hold addresses: these operators write memory that is not among
// their
//            arguments, so they are not for traced code
// all others on the device, or in pinned host memory (workspace: on the device)
// workspace  int64 [3 n], zeros before the first launch, and left as zeros; one launch at a time may use it
// num_sms    0: the whole device, else so many multiprocessors
STABLE_TORCH_LIBRARY_FRAGMENT(tutti_kv_kernels, m) {
  m.def("device_plan_bytes() -> int");
  m.def(
      "device_prepare(Tensor[] storages, Tensor planes, Tensor window, int slot_bytes, bool by_tokens, "
      "Tensor(a!) plan) -> ()");
  m.def(
      "device_gather(Tensor plan, Tensor block_ids, Tensor slots, Tensor? layers, Tensor? token_ranges, "
      "bool missing_blocks, Tensor(a!)? checksums, Tensor(b!)? status, Tensor(c!)? workspace, "
      "int num_sms) -> ()");
  m.def(
      "device_scatter(Tensor plan, Tensor block_ids, Tensor slots, Tensor? layers, Tensor? token_ranges, "
      "Tensor? read_status, Tensor? checksums, Tensor(a!)? status, Tensor(b!)? workspace, int verify, "
      "int num_sms) -> ()");
  m.def(
      "device_sum(Tensor plan, Tensor block_ids, Tensor slots, Tensor? layers, Tensor? read_status, "
      "Tensor(a!) checksums, Tensor(b!)? status, Tensor(c!) workspace, bool of_slots, bool compare, "
      "int num_sms) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(tutti_kv_kernels, CompositeExplicitAutograd, m) {
  m.impl("device_plan_bytes", TORCH_BOX(&tutti::kv::device_plan_bytes));
}

STABLE_TORCH_LIBRARY_IMPL(tutti_kv_kernels, CUDA, m) {
  m.impl("gather", TORCH_BOX(&tutti::kv::gather));
  m.impl("scatter", TORCH_BOX(&tutti::kv::scatter));
  m.impl("device_prepare", TORCH_BOX(&tutti::kv::device_prepare));
  m.impl("device_gather", TORCH_BOX(&tutti::kv::device_gather));
  m.impl("device_scatter", TORCH_BOX(&tutti::kv::device_scatter));
  m.impl("device_sum", TORCH_BOX(&tutti::kv::device_sum));
}
