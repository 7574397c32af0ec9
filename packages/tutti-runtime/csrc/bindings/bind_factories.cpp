// SPDX-License-Identifier: Apache-2.0
#include <initializer_list>
#include <string>
#include <utility>

#include "bindings.hpp"
#include "tutti/runtime/config.hpp"
#include "tutti/runtime/error.hpp"
#include "tutti/runtime/testing/fault_path.hpp"

namespace tutti::runtime::bindings {
namespace {

template <typename T>
T pick(const char* key, const std::string& value, std::initializer_list<std::pair<const char*, T>> choices) {
  for (const auto& [name, choice] : choices) {
    if (value == name) {
      return choice;
    }
  }
  throw InvalidArgument(std::string(key) + "='" + value + "' is not known");
}

Holder make_file(const std::string& data_path, const std::string& direct, std::uint32_t queue_depth,
                 std::uint32_t max_in_flight, std::uint32_t threads, std::uint32_t max_open_files,
                 const std::string& nofollow, std::vector<std::string> roots, std::uint64_t unit,
                 std::shared_ptr<testing::FaultControl> fault) {
  FileConfig config;
  config.data_path = pick<DataPathChoice>("data_path", data_path,
                                          {{"auto", DataPathChoice::kAuto},
                                           {"uring", DataPathChoice::kUring},
                                           {"posix", DataPathChoice::kPosix}});
  config.direct = pick<DirectPolicy>(
      "direct", direct,
      {{"auto", DirectPolicy::kAuto}, {"on", DirectPolicy::kOn}, {"off", DirectPolicy::kOff}});
  config.queue_depth = queue_depth;
  config.max_in_flight = max_in_flight;
  config.threads = threads;
  config.max_open_files = max_open_files;
  config.no_follow =
      pick<NoFollow>("nofollow", nofollow, {{"last", NoFollow::kLast}, {"all", NoFollow::kAll}});
  config.roots = std::move(roots);
  config.unit = unit;
  config.fault = std::move(fault);
  py::gil_scoped_release release;
  return Holder(make_file_runtime(config).release());
}

Holder make_memory(std::uint32_t max_in_flight, std::shared_ptr<testing::FaultControl> fault) {
  return Holder(make_memory_runtime(max_in_flight, std::move(fault)).release());
}

}  // namespace

void bind_factories(py::module_& module) {
  using namespace py::literals;
  module.def("make_file", &make_file, "data_path"_a, "direct"_a, "queue_depth"_a, "max_in_flight"_a,
             "threads"_a, "max_open_files"_a, "nofollow"_a, "roots"_a, "unit"_a, "fault"_a = nullptr);
  module.def("make_memory", &make_memory, "max_in_flight"_a, "fault"_a = nullptr);
}

}  // namespace tutti::runtime::bindings
