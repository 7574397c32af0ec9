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
[[nodiscard]] std::int64_t require_block_ids(const Tensor& tensor, std::int64_t segments);
void require_per_segment(const Tensor& tensor, ScalarType dtype, const char* name, std::int64_t segments);
void require_disjoint(const Bytes& pages, const Bytes& window);
void require_threads(std::int64_t threads);

}  // namespace tutti::kv
