// SPDX-License-Identifier: Apache-2.0
#include "checks.h"

#include <functional>
#include <string>

#include "geometry.h"
#include "message.h"

namespace tutti::kv {
namespace {

constexpr std::int64_t kMaxThreads = 64;

std::string describe(const Tensor& tensor) {
  std::ostringstream text;
  text << torch::headeronly::toString(tensor.scalar_type()) << " tensor of shape [";
  const auto sizes = tensor.sizes();
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    text << (i == 0 ? "" : ", ") << sizes[i];
  }
  text << "]" << (tensor.is_cpu() ? "" : " that is not on the CPU")
       << (tensor.is_contiguous() ? "" : " that is not contiguous");
  return text.str();
}

void require(const Tensor& tensor, ScalarType dtype, std::int64_t rank, const char* name) {
  if (tensor.scalar_type() != dtype || tensor.dim() != rank || !tensor.is_contiguous() || !tensor.is_cpu()) {
    refuse(name, " must be a contiguous ", rank, "-D ", torch::headeronly::toString(dtype),
           " tensor on the CPU, got a ", describe(tensor));
  }
}

std::span<const std::int64_t> numbers_of(const Tensor& tensor) {
  return {static_cast<const std::int64_t*>(tensor.data_ptr()), static_cast<std::size_t>(tensor.numel())};
}

}  // namespace

Bytes require_bytes(const Tensor& tensor, const char* name) {
  require(tensor, ScalarType::Byte, 1, name);
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.numel()};
}

std::span<const std::int64_t> require_ids(const Tensor& tensor, const char* name) {
  require(tensor, ScalarType::Long, 1, name);
  return numbers_of(tensor);
}

std::int64_t require_block_ids(const Tensor& tensor, std::int64_t segments, std::int64_t repeats) {
  require(tensor, ScalarType::Long, 2, "block_ids");
  if (repeats < 1) {
    refuse("repeats must be at least 1, got ", repeats);
  }
  if (segments % repeats != 0 || tensor.size(0) != segments / repeats) {
    refuse("block_ids must have one row for each of the ", segments, " slots", repeats == 1 ? "" : " / ",
           repeats == 1 ? "" : std::to_string(repeats), repeats == 1 ? "" : " repeats", ", got a ",
           describe(tensor));
  }
  return tensor.size(1);
}

std::span<const std::int64_t> require_planes(const Tensor& tensor) {
  require(tensor, ScalarType::Long, 2, "planes");
  if (tensor.size(1) != kPlaneColumns) {
    refuse("planes must have ", kPlaneColumns, " columns, got a ", describe(tensor));
  }
  return numbers_of(tensor);
}

std::span<const std::int64_t> require_pairs(const Tensor& tensor, const char* name, std::int64_t segments) {
  require(tensor, ScalarType::Long, 2, name);
  if (tensor.size(0) != segments || tensor.size(1) != 2) {
    refuse(name, " must have two numbers for each of the ", segments, " slots, got a ", describe(tensor));
  }
  return numbers_of(tensor);
}

void require_per_segment(const Tensor& tensor, ScalarType dtype, const char* name, std::int64_t segments) {
  require(tensor, dtype, 1, name);
  if (tensor.numel() != segments) {
    refuse(name, " must have one entry for each of the ", segments, " slots, got a ", describe(tensor));
  }
}

void require_disjoint(const Bytes& pages, const Bytes& window, std::size_t storage) {
  const std::less<const std::byte*> before;
  if (before(pages.data, window.data + window.size) && before(window.data, pages.data + pages.size)) {
    refuse("window (", window.size, " bytes) overlaps pages (", pages.size, " bytes) in storages[", storage,
           "]; they must be separate memory");
  }
}

void require_threads(std::int64_t threads) {
  if (threads < 1 || threads > kMaxThreads) {
    refuse("num_threads must be 1 to ", kMaxThreads, ", got ", threads);
  }
}

}  // namespace tutti::kv
