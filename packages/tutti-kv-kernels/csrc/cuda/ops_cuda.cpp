// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "../message.h"
#include "copy_engine.h"
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

// A copy of a large geometry on the device, from the same allocator. The host's copy is pageable: CUDA has
// taken it over when the call returns.
OptionalTensor make_resident(const Tensor& beside, const DeviceGeometry& geometry) {
  if (!geometry.is_large()) {
    return std::nullopt;
  }
  const cudaStream_t stream = current_stream(geometry.device);
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  require_cuda(cudaStreamIsCapturing(stream, &capturing), "asking whether a graph is captured");
  if (capturing != cudaStreamCaptureStatusNone) {
    refuse("a transfer of many layers or of tokens can be captured into a graph as a DeviceTransfer only");
  }
  const std::vector<std::int64_t> shape{sizeof(DeviceGeometry)};
  Tensor resident = torch::stable::new_empty(beside, shape, ScalarType::Byte);
  require_cuda(
      cudaMemcpyAsync(resident.data_ptr(), &geometry, sizeof(geometry), cudaMemcpyHostToDevice, stream),
      "copying the geometry to the device");
  return resident;
}

LaunchOptions options_of(std::int64_t num_sms, const OptionalTensor& resident) {
  return {num_sms, resident ? static_cast<const std::byte*>(resident->data_ptr()) : nullptr};
}

void require_repeats(const Tensor& block_ids, const Tensor& slots, std::int64_t repeats) {
  if (block_ids.dim() != 2 || repeats < 1 || block_ids.size(0) * repeats != slots.numel()) {
    refuse("block_ids must have one row for each of the ", slots.numel(), " slots / ", repeats, " repeats");
  }
}

void gather(const std::vector<Tensor>& storages, const Tensor& planes, const OptionalTensor& layers,
            const Tensor& block_ids, std::int64_t repeats, const OptionalTensor& token_ranges,
            bool missing_blocks, const Tensor& window, const Tensor& slots, std::int64_t slot_bytes,
            const Tensor& checksums, const OptionalTensor& status, std::int64_t /*workers*/) {
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
                                                     .status = status,
                                                     .workspace = workspace});
  launch.missing_blocks = missing_blocks ? 1 : 0;
  const OptionalTensor resident = make_resident(storages.front(), geometry);
  enqueue(KernelMode::kGather, geometry, launch, options_of(0, resident));
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
  const OptionalTensor resident = make_resident(storages.front(), geometry);
  enqueue_scatter(Verify::kBefore, geometry,
                  describe_launch(geometry, {.block_ids = block_ids,
                                             .slots = slots,
                                             .layers = layers,
                                             .token_ranges = token_ranges,
                                             .read_status = read_status,
                                             .checksums = checksums,
                                             .status = status,
                                             .workspace = workspace}),
                  options_of(0, resident));
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
                   const OptionalTensor& workspace, const OptionalTensor& resident, std::int64_t num_sms) {
  const DeviceGeometry& geometry = geometry_of(plan);
  if (slots.numel() == 0) {
    return;
  }
  const DeviceScope scope(geometry.device);
  TransferLaunch launch = describe_launch(
      geometry, {block_ids, slots, layers, token_ranges, std::nullopt, checksums, status, workspace});
  launch.missing_blocks = missing_blocks ? 1 : 0;
  enqueue(KernelMode::kGather, geometry, launch, options_of(num_sms, resident));
}

void device_scatter(const Tensor& plan, const Tensor& block_ids, const Tensor& slots,
                    const OptionalTensor& layers, const OptionalTensor& token_ranges,
                    const OptionalTensor& read_status, const OptionalTensor& checksums,
                    const OptionalTensor& status, const OptionalTensor& workspace,
                    const OptionalTensor& resident, std::int64_t verify, std::int64_t num_sms) {
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
                  options_of(num_sms, resident));
}

void device_sum(const Tensor& plan, const Tensor& block_ids, const Tensor& slots,
                const OptionalTensor& layers, const OptionalTensor& read_status, const Tensor& checksums,
                const OptionalTensor& status, const Tensor& workspace, const OptionalTensor& resident,
                bool of_slots, bool compare, std::int64_t num_sms) {
  const DeviceGeometry& geometry = geometry_of(plan);
  if (slots.numel() == 0) {
    return;
  }
  const DeviceScope scope(geometry.device);
  TransferLaunch launch = describe_launch(
      geometry, {block_ids, slots, layers, std::nullopt, read_status, checksums, status, workspace});
  launch.compare = compare ? 1 : 0;
  launch.missing_blocks = 1;
  enqueue(of_slots ? KernelMode::kSumSlots : KernelMode::kSumPages, geometry, launch,
          options_of(num_sms, resident));
}

template <typename T>
std::span<const T> host_numbers(const OptionalTensor& tensor, ScalarType dtype,
                                std::initializer_list<std::int64_t> shape, const char* name) {
  if (!tensor) {
    return {};
  }
  require_layout(*tensor, dtype, shape, name);
  if (!tensor->is_cpu()) {
    refuse(name, " must be on the CPU: copy engines are given addresses by the host");
  }
  return {static_cast<const T*>(tensor->data_ptr()), static_cast<std::size_t>(tensor->numel())};
}

void device_copy(const Tensor& plan, const Tensor& block_ids, const Tensor& slots,
                 const OptionalTensor& layers, const OptionalTensor& read_status, bool to_slots,
                 bool missing_blocks) {
  const DeviceGeometry& geometry = geometry_of(plan);
  const std::int64_t n = slots.numel();
  if (n == 0) {
    return;
  }
  HostSegments segments{
      .slots = host_numbers<std::int64_t>(slots, ScalarType::Long, {n}, "slots"),
      .layers = host_numbers<std::int64_t>(layers, ScalarType::Long, {n}, "layers"),
      .read_status = host_numbers<std::int32_t>(read_status, ScalarType::Int, {n}, "read_status"),
      .block_ids = host_numbers<std::int64_t>(block_ids, ScalarType::Long, {-1, -1}, "block_ids"),
      .rows = block_ids.size(0),
      .columns = block_ids.size(1)};
  require_shape(geometry, n, segments.rows, segments.columns);
  if (geometry.by_tokens != 0) {
    refuse("the copy engines move whole blocks; a geometry prepared by tokens needs the kernel");
  }
  const CopyRuns runs = collect_runs(geometry, segments, to_slots, missing_blocks);
  const DeviceScope scope(geometry.device);
  start_copies(runs, to_slots, current_stream(geometry.device));
}

std::int64_t device_runs_per_block(const Tensor& plan) { return most_runs_per_block(geometry_of(plan)); }

bool device_needs_resident(const Tensor& plan) { return geometry_of(plan).is_large(); }

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
// resident   a copy of plan on the device, where the plan needs one (device_needs_resident)
// num_sms    0: the whole device, else so many multiprocessors
STABLE_TORCH_LIBRARY_FRAGMENT(tutti_kv_kernels, m) {
  m.def("device_plan_bytes() -> int");
  m.def("device_runs_per_block(Tensor plan) -> int");
  m.def("device_needs_resident(Tensor plan) -> bool");
  m.def(
      "device_prepare(Tensor[] storages, Tensor planes, Tensor window, int slot_bytes, bool by_tokens, "
      "Tensor(a!) plan) -> ()");
  m.def(
      "device_gather(Tensor plan, Tensor block_ids, Tensor slots, Tensor? layers, Tensor? token_ranges, "
      "bool missing_blocks, Tensor(a!)? checksums, Tensor(b!)? status, Tensor(c!)? workspace, "
      "Tensor? resident, int num_sms) -> ()");
  m.def(
      "device_scatter(Tensor plan, Tensor block_ids, Tensor slots, Tensor? layers, Tensor? token_ranges, "
      "Tensor? read_status, Tensor? checksums, Tensor(a!)? status, Tensor(b!)? workspace, Tensor? resident, "
      "int verify, "
      "int num_sms) -> ()");
  m.def(
      "device_sum(Tensor plan, Tensor block_ids, Tensor slots, Tensor? layers, Tensor? read_status, "
      "Tensor(a!) checksums, Tensor(b!)? status, Tensor(c!) workspace, Tensor? resident, bool of_slots, bool "
      "compare, "
      "int num_sms) -> ()");
  m.def(
      "device_copy(Tensor plan, Tensor block_ids, Tensor slots, Tensor? layers, Tensor? read_status, "
      "bool to_slots, bool missing_blocks) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(tutti_kv_kernels, CPU, m) {
  // Its ids are on the host; what it moves is on the device.
  m.impl("device_copy", TORCH_BOX(&tutti::kv::device_copy));
  m.impl("device_needs_resident", TORCH_BOX(&tutti::kv::device_needs_resident));
  m.impl("device_runs_per_block", TORCH_BOX(&tutti::kv::device_runs_per_block));
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
