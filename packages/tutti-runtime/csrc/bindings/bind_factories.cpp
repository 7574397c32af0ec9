// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "bindings.hpp"
#include "tutti/runtime/config.hpp"
#include "tutti/runtime/testing/fault_path.hpp"

namespace tutti::runtime::bindings {
namespace {

using namespace py::literals;

/// Takes settings out of a dictionary; what is left at the end nobody knows.
class Settings {
 public:
  explicit Settings(const py::dict& values) : left_(values.attr("copy")()) {}

  template <typename T>
  void take(const char* key, T& value) {
    if (left_.contains(key)) {
      value = left_[key].cast<T>();
      left_.attr("pop")(key);
    }
  }

  template <typename T>
  void take(const char* key, T& value, std::initializer_list<std::pair<const char*, T>> choices) {
    std::string name;
    take(key, name);
    for (const auto& [choice, meaning] : choices) {
      if (name == choice) {
        value = meaning;
        return;
      }
    }
    if (!name.empty()) {
      throw InvalidArgument(std::string(key) + "='" + name + "' is not known");
    }
  }

  void require_empty() const {
    if (!left_.empty()) {
      throw InvalidArgument("unknown settings: " + std::string(py::repr(left_)));
    }
  }

 private:
  py::dict left_;
};

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
