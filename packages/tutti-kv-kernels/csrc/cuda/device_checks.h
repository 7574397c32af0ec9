// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <optional>
#include <vector>

#include "../checks.h"
#include "driver.h"

namespace tutti::kv {

// Dtype, contiguity and shape, on any device; -1 stands for any size.
// @throws std::invalid_argument with the argument's name, its dtype and shape, and the rule.
void require_layout(const Tensor& tensor, ScalarType dtype, std::initializer_list<std::int64_t> shape,
                    const char* name);

// The CUDA device that all of them are on. @throws std::invalid_argument when there is none.
[[nodiscard]] std::int32_t require_one_device(const std::vector<Tensor>& storages);

// The tensor's address for `device`, null where there is no tensor.
template <typename T>
[[nodiscard]] T* optional_address(const std::optional<Tensor>& tensor, ScalarType dtype,
                                  std::initializer_list<std::int64_t> shape, const char* name,
                                  std::int32_t device) {
  if (!tensor) {
    return nullptr;
  }
  require_layout(*tensor, dtype, shape, name);
  return reinterpret_cast<T*>(device_address(*tensor, name, device));
}

}  // namespace tutti::kv
