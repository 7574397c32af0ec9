// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace tutti::kv {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

struct Bytes {
  std::byte* data;
  std::int64_t size;
};

// Each of these throws std::invalid_argument with the argument's name, its dtype and shape, and the rule.
[[nodiscard]] Bytes require_bytes(const Tensor& tensor, const char* name);
[[nodiscard]] std::span<const std::int64_t> require_ids(const Tensor& tensor, const char* name);
// Number of columns of a 2-D tensor of ids that has `rows` rows.
[[nodiscard]] std::int64_t require_block_ids(const Tensor& tensor, std::int64_t segments,
                                             std::int64_t repeats);
// The table of planes: int64 [planes, kPlaneColumns], on the CPU whatever the device of the pages.
[[nodiscard]] std::span<const std::int64_t> require_planes(const Tensor& tensor);
// Pairs of numbers: int64 [segments, 2].
[[nodiscard]] std::span<const std::int64_t> require_pairs(const Tensor& tensor, const char* name,
                                                          std::int64_t segments);
void require_per_segment(const Tensor& tensor, ScalarType dtype, const char* name, std::int64_t segments);
void require_disjoint(const Bytes& pages, const Bytes& window, std::size_t storage);
void require_threads(std::int64_t threads);

}  // namespace tutti::kv
