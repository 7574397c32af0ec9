// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "tutti/runtime/detail/fiemap.hpp"
#include "tutti/runtime/extents.hpp"

namespace tutti::runtime::bindings {
namespace {

/// Three columns: logical, physical, length.
py::array_t<std::uint64_t> to_array_of(const std::vector<Extent>& extents) {
  static_assert(sizeof(Extent) == 3 * sizeof(std::uint64_t));
  return py::array_t<std::uint64_t>({static_cast<py::ssize_t>(extents.size()), py::ssize_t{3}},
                                    reinterpret_cast<const std::uint64_t*>(extents.data()));
}

py::tuple resolve(const py::bytes& path, bool sync) {
  const std::string name = path;
  ExtentMap map;
  {
    py::gil_scoped_release release;
    map = resolve_extents(name, sync);
  }
  const ExtentSignature& signature = map.signature;
  return py::make_tuple(
      to_array_of(map.extents),
      py::make_tuple(signature.device, signature.inode, signature.generation, signature.size, signature.mtime,
                     signature.ctime, signature.extents_hash));
}

/// The rules alone, over bytes that need not come from a kernel.
py::array_t<std::uint64_t> prove(const py::bytes& reply, std::uint64_t file_size) {
  const std::string_view bytes = reply;
  detail::ExtentProof proof(file_size);
  for (const auto& record : detail::parse_fiemap(std::as_bytes(std::span(bytes)))) {
    proof.add(record);
  }
  return to_array_of(std::move(proof).finish());
}

}  // namespace

void bind_extents(py::module_& module) {
  using namespace py::literals;
  module.def("resolve_extents", &resolve, "path"_a, "sync"_a);
  module.def("prove_extents", &prove, "reply"_a, "file_size"_a);
}

}  // namespace tutti::runtime::bindings
