// SPDX-License-Identifier: Apache-2.0
#include "device_checks.h"

#include <sstream>

#include "../message.h"

namespace tutti::kv {
namespace {

template <typename Sizes>
std::string shape_text(const Sizes& sizes) {
  std::ostringstream text;
  const char* comma = "";
  text << "[";
  for (const std::int64_t size : sizes) {
    text << comma;
    if (size < 0) {
      text << "any";
    } else {
      text << size;
    }
    comma = ", ";
  }
  text << "]";
  return text.str();
}

}  // namespace

void require_layout(const Tensor& tensor, ScalarType dtype, std::initializer_list<std::int64_t> shape,
                    const char* name) {
  const auto sizes = tensor.sizes();
  bool good = tensor.scalar_type() == dtype && tensor.is_contiguous() && sizes.size() == shape.size();
  for (std::size_t i = 0; good && i < shape.size(); ++i) {
    good = shape.begin()[i] < 0 || shape.begin()[i] == sizes[i];
  }
  if (!good) {
    refuse(name, " must be a contiguous ", torch::headeronly::toString(dtype), " tensor of shape ",
           shape_text(shape), ", got ", tensor.is_contiguous() ? "" : "a not contiguous ",
           torch::headeronly::toString(tensor.scalar_type()), " ", shape_text(sizes));
  }
}

std::int32_t require_one_device(const std::vector<Tensor>& storages) {
  if (storages.empty() || !storages.front().is_cuda()) {
    refuse("pages must be on a CUDA device");
  }
  const std::int32_t device = storages.front().get_device_index();
  for (const Tensor& storage : storages) {
    if (!storage.is_cuda() || storage.get_device_index() != device) {
      refuse("pages must all be on CUDA device ", device);
    }
  }
  return device;
}

}  // namespace tutti::kv
