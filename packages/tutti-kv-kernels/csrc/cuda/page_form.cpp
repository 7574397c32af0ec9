// SPDX-License-Identifier: Apache-2.0
#include "page_form.h"

#include <limits>

namespace tutti::kv {
namespace {

constexpr std::int64_t kMaxNumber = std::numeric_limits<std::int32_t>::max();

// A plane's pages; `parts` is left open.
PageForm form_of(const Plane& plane) noexcept {
  const std::int64_t vectors = packed_bytes(plane) / kPageVectorBytes;
  const std::int64_t units = (vectors + kPageUnitVectors - 1) / kPageUnitVectors;
  const bool few_levels = plane.counts[0] == 1 && plane.counts[1] == 1;
  const bool fills_units = units * kPageUnitVectors * 3 <= vectors * 4;
  if (plane.tokens_per_block != 1 || !few_levels || !fills_units || vectors > kMaxNumber) {
    return {};
  }
  return {.parts = 1,
          .page_vectors = static_cast<std::uint32_t>(vectors),
          .run_vectors = static_cast<std::uint32_t>(plane.run_bytes / kPageVectorBytes),
          .run_stride = plane.counts[2] == 1 ? 0 : plane.strides[2]};
}

bool equal(const PageForm& a, const PageForm& b) noexcept {
  return a.parts == b.parts && a.page_vectors == b.page_vectors && a.run_vectors == b.run_vectors &&
         a.run_stride == b.run_stride;
}

}  // namespace

PageForm find_page_form(const std::vector<Layer>& layers) noexcept {
  const std::vector<Plane>& first = layers.front().merged;
  PageForm form = form_of(first.front());
  for (const Layer& layer : layers) {
    if (layer.merged.size() != first.size() || counts_tokens(layer.planes.front())) {
      return {};
    }
    for (const Plane& plane : layer.merged) {
      if (form.parts == 0 || !equal(form_of(plane), form)) {
        return {};
      }
    }
  }
  form.parts = static_cast<std::uint32_t>(first.size());
  return form;
}

}  // namespace tutti::kv
