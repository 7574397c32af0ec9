// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include "bindings.hpp"
#include "tutti/runtime/open_batch.hpp"

namespace tutti::runtime::bindings {
namespace {

/// Paths are bytes; Python's own way of holding them in a str.
py::object to_path(const std::string& path) {
  return py::reinterpret_steal<py::object>(
      PyUnicode_DecodeFSDefaultAndSize(path.data(), static_cast<Py_ssize_t>(path.size())));
}

py::dict to_dict(const TargetInfo& info) {
  using namespace py::literals;
  py::dict facts("kind"_a = info.kind, "path"_a = to_path(info.path), "size"_a = info.size,
                 "offset"_a = info.offset, "writable"_a = info.writable, "direct"_a = info.direct,
                 "root"_a = info.root, "inode"_a = info.inode);
  facts["root_tag"] = info.root_tag.empty() ? py::object(py::none()) : py::object(py::str(info.root_tag));
  if (!info.shards.empty()) {
    facts["unit"] = info.unit;
    facts["rotation"] = info.rotation;
    py::list shards;
    for (const TargetInfo& shard : info.shards) {
      shards.append(to_dict(shard));
    }
    facts["shards"] = shards;
  }
  return facts;
}

py::dict query(StorageRuntime& runtime, const py::object& handle) {
  const StorageRuntime::TargetFacts facts = runtime.query(to_handle(handle));
  py::dict result = to_dict(facts.info);
  result["uri"] = facts.uri;
  return result;
}

py::list open_many(StorageRuntime& runtime, const std::vector<std::string>& uris, bool writable,
                   const std::vector<std::string>& roots) {
  std::vector<OpenOutcome> outcomes;
  {
    py::gil_scoped_release release;
    outcomes = open_batch(runtime, uris, writable, roots);
  }
  py::list results;
  for (const OpenOutcome& outcome : outcomes) {
    if (outcome.error != nullptr) {
      results.append(py::make_tuple(py::none(), to_exception(outcome.error)));
    } else {
      results.append(py::make_tuple(outcome.target, py::none()));
    }
  }
  return results;
}

}  // namespace

void bind_targets(Class& runtime) {
  using namespace py::literals;
  runtime.def("open_batch", &open_many, "uris"_a, "writable"_a, "roots"_a);
  runtime.def("query", &query);
}

}  // namespace tutti::runtime::bindings
