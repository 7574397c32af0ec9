// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "nvme_controllers.hpp"
#include "tutti/runtime/nvme/broker_host.hpp"

namespace tutti::runtime::bindings {
namespace {

using namespace py::literals;
using nvme::BrokerHost;
using Ranges = std::vector<std::tuple<std::uint32_t, std::uint64_t, std::uint64_t>>;

std::unique_ptr<BrokerHost> make_host(const py::dict& controller, double admin_timeout,
                                      std::uint32_t queues) {
  const nvme::ControllerConfig config = to_controller(controller);
  nvme::BrokerHostOptions options;
  options.admin_timeout = Duration(admin_timeout);
  options.queues = queues;
  py::gil_scoped_release release;
  return std::make_unique<BrokerHost>(config.open(), options);
}

py::dict facts_of(const BrokerHost& host) {
  const nvme::BrokerFacts& facts = host.facts();
  return py::dict("name"_a = facts.name, "model"_a = facts.model, "serial"_a = facts.serial,
                  "cap"_a = facts.cap, "version"_a = facts.version, "queues"_a = facts.queues,
                  "enforces_ranges"_a = facts.enforces_ranges);
}

py::dict counters_of(const BrokerHost& host) {
  nvme::BrokerCounters counters;
  {
    py::gil_scoped_release release;
    counters = host.counters();
  }
  return py::dict("clients"_a = counters.clients, "stranded"_a = counters.stranded,
                  "free_queues"_a = counters.free_queues, "resets"_a = counters.resets,
                  "refused_doorbells"_a = counters.refused_doorbells, "up"_a = counters.up);
}

py::dict add_client(BrokerHost& host, std::uint32_t queues, std::uint32_t windows, std::uint64_t window_bytes,
                    const Ranges& ranges) {
  nvme::BrokerClientLimits limits;
  limits.queues = queues;
  limits.windows = windows;
  limits.window_bytes = window_bytes;
  for (const auto& [nsid, first, blocks] : ranges) {
    limits.ranges.push_back({nsid, first, blocks});
  }
  nvme::BrokerClient client;
  {
    py::gil_scoped_release release;
    client = host.add_client(limits);
  }
  return py::dict("id"_a = client.id, "queue_ids"_a = client.queue_ids, "state_file"_a = client.state_file,
                  "doorbell_file"_a = client.doorbell_file, "doorbell_bytes"_a = client.doorbell_bytes);
}

py::tuple map_window(BrokerHost& host, std::uint32_t client, int fd, std::uint64_t offset,
                     std::uint64_t size) {
  nvme::BrokerWindow window;
  {
    py::gil_scoped_release release;
    window = host.map(client, fd, offset, size);
  }
  py::list runs;
  for (const nvme::DmaRun& run : window.runs) {
    runs.append(py::make_tuple(run.iova, run.size));
  }
  return py::make_tuple(window.id, runs);
}

py::tuple run_admin(BrokerHost& host, std::uint32_t client, const py::bytes& entry) {
  const auto text = static_cast<std::string_view>(entry);
  nvme::Command command{};
  if (text.size() != sizeof command) {
    throw InvalidArgument("a command has 64 bytes, not " + std::to_string(text.size()));
  }
  std::memcpy(&command, text.data(), sizeof command);
  nvme::BrokerAnswer answer;
  {
    py::gil_scoped_release release;
    answer = host.admin(client, command);
  }
  const auto* const data = reinterpret_cast<const char*>(answer.data.data());
  return py::make_tuple(answer.dw0, answer.status, py::bytes(data, answer.data.size()));
}

}  // namespace

void bind_nvme_broker(py::module_& module) {
  using Release = py::call_guard<py::gil_scoped_release>;
  py::class_<BrokerHost>(module, "NvmeBrokerHost")
      .def(py::init(&make_host), "controller"_a, "admin_timeout"_a, "queues"_a)
      .def("facts", &facts_of)
      .def("counters", &counters_of)
      .def("add_client", &add_client, "queues"_a, "windows"_a, "window_bytes"_a, "ranges"_a)
      .def("remove_client", &BrokerHost::remove_client, Release())
      .def("map", &map_window)
      .def("unmap", &BrokerHost::unmap, Release())
      .def("admin", &run_admin)
      .def("reset_client", &BrokerHost::reset_client, Release())
      .def("look_after", &BrokerHost::look_after, Release());
}

}  // namespace tutti::runtime::bindings
