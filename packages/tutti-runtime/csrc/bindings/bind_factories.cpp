// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "bindings.hpp"
#include "settings.hpp"
#include "tutti/runtime/config.hpp"
#include "tutti/runtime/testing/fault_path.hpp"

namespace tutti::runtime::bindings {

WritePolicy to_policy(const py::dict& values) {
  WritePolicy policy;
  Settings settings(values);
  settings.take("share", policy.share);
  settings.take("busy_bytes_in_flight", policy.busy_bytes_in_flight);
  settings.take("bytes_in_flight", policy.bytes_in_flight);
  settings.take("rate", policy.rate);
  settings.take("idle_after", policy.idle_after);
  settings.take("max_wait", policy.max_wait);
  settings.require_empty();
  return policy;
}

namespace {

using namespace py::literals;

Holder make_file(const py::kwargs& values) {
  FileConfig config;
  Settings settings(values);
  settings.take<DataPathChoice>("data_path", config.data_path,
                                {{"auto", DataPathChoice::kAuto},
                                 {"uring", DataPathChoice::kUring},
                                 {"posix", DataPathChoice::kPosix},
                                 {"cufile", DataPathChoice::kCufile}});
  settings.take<DirectPolicy>(
      "direct", config.direct,
      {{"auto", DirectPolicy::kAuto}, {"on", DirectPolicy::kOn}, {"off", DirectPolicy::kOff}});
  settings.take<NoFollow>("nofollow", config.no_follow, {{"last", NoFollow::kLast}, {"all", NoFollow::kAll}});
  settings.take("queue_depth", config.queue_depth);
  settings.take("max_in_flight", config.max_in_flight);
  settings.take("max_results", config.max_results);
  settings.take("threads", config.threads);
  settings.take("max_open_files", config.max_open_files);
  settings.take("roots", config.roots);
  settings.take("unit", config.unit);
  settings.take("step_down_after", config.step_down_after);
  settings.take("cufile_library", config.cufile_library);
  settings.take("fault", config.fault);
  py::dict policy;
  settings.take("write_policy", policy);
  config.write_policy = to_policy(policy);
  settings.require_empty();
  py::gil_scoped_release release;
  return Holder(make_file_runtime(config).release());
}

Holder make_memory(std::uint32_t max_in_flight, const std::shared_ptr<testing::FaultControl>& fault) {
  return Holder(make_memory_runtime(max_in_flight, fault).release());
}

}  // namespace

void bind_factories(py::module_& module, Class& runtime) {
  module.def("make_file", &make_file);
  module.def("make_memory", &make_memory, "max_in_flight"_a, "fault"_a = nullptr);
  runtime.def("set_write_policy", [](StorageRuntime& r, const py::dict& values) {
    const WritePolicy policy = to_policy(values);
    py::gil_scoped_release release;
    r.set_write_policy(policy);
  });
}

}  // namespace tutti::runtime::bindings
