// SPDX-License-Identifier: Apache-2.0
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "bindings.hpp"
#include "nvme_controllers.hpp"
#include "settings.hpp"
#include "tutti/runtime/nvme/broker.hpp"
#include "tutti/runtime/nvme/config.hpp"
#include "tutti/runtime/nvme/qtest.hpp"
#include "tutti/runtime/nvme/soft.hpp"
#include "tutti/runtime/nvme/vfio.hpp"
#include "tutti/runtime/testing/fault_path.hpp"
#include "tutti/runtime/testing/soft_rate.hpp"

namespace tutti::runtime::bindings {
namespace {

using namespace py::literals;
using nvme::ControllerConfig;
using nvme::SoftControl;
using nvme::SoftFault;
using nvme::SoftRule;
using nvme::SoftSettings;
using OpenTransport = std::function<std::unique_ptr<nvme::Transport>()>;

/// One namespace may stand in the controller's own keys, several in `namespaces`.
OpenTransport soft_transport(Settings& settings, const std::string& name) {
  SoftSettings soft;
  soft.name = name;
  nvme::SoftNamespace only;
  const auto take_namespace = [](Settings& from, nvme::SoftNamespace& space) {
    from.take("memory_bytes", space.bytes);
    from.take("image", space.image);
    from.take("lba_bytes", space.lba_bytes);
    from.take("metadata_bytes", space.metadata_bytes);
  };
  take_namespace(settings, only);
  py::list several;
  settings.take("namespaces", several);
  for (const py::handle& each : several) {
    nvme::SoftNamespace space;
    Settings own(each.cast<py::dict>());
    take_namespace(own, space);
    own.require_empty();
    soft.namespaces.push_back(space);
  }
  if (several.empty()) {
    soft.namespaces.push_back(only);
  }
  settings.take("mdts_bytes", soft.mdts_bytes);
  settings.take("sgl", soft.sgl);
  settings.take("max_entries", soft.max_entries);
  settings.take("max_queues", soft.max_queues);
  settings.take("doorbell_stride", soft.doorbell_stride);
  settings.take("timeout_ms", soft.timeout_ms);
  settings.take("noiob", soft.noiob);
  settings.take("dma_granule", soft.dma_granule);
  settings.take("latency", soft.latency);
  settings.take("bandwidth", soft.bandwidth);
  settings.take("device", soft.device);
  std::shared_ptr<SoftControl> control;
  settings.take("control", control);
  return [soft, control]() -> std::unique_ptr<nvme::Transport> {
    return nvme::make_soft_transport(soft, control);
  };
}

OpenTransport qtest_transport(Settings& settings) {
  nvme::QtestOptions options;
  settings.take("socket", options.socket);
  settings.take("ram", options.ram);
  settings.take("slot", options.slot);
  settings.take("relay", options.relay);
  settings.take("peer", options.peer);
  settings.take("peer_slot", options.peer_slot);
  settings.take("device", options.device);
  return [options] { return nvme::open_qtest(options); };
}

OpenTransport broker_transport(Settings& settings, const std::string& name) {
  nvme::BrokerOptions options;
  options.controller = name;
  settings.take("socket", options.socket);
  settings.take("controller", options.controller);
  settings.take("queues", options.queues);
  double timeout = options.answer_timeout.count();
  settings.take("answer_timeout", timeout);
  options.answer_timeout = Duration(timeout);
  return [options] { return nvme::open_broker(options); };
}

OpenTransport vfio_transport(Settings& settings, const std::string& name) {
  nvme::VfioOptions options;
  options.bdf = name;
  settings.take("bdf", options.bdf);
  settings.take("root", options.root);
  return [options] { return nvme::open_vfio(options); };
}

}  // namespace

ControllerConfig to_controller(const py::dict& values) {
  ControllerConfig controller;
  Settings settings(values);
  std::string transport;
  settings.take("transport", transport);
  settings.take("name", controller.name);
  py::list devices;
  settings.take("block_devices", devices);
  for (const py::handle& each : devices) {
    nvme::BlockDevice device;
    Settings own(each.cast<py::dict>());
    std::pair<std::uint32_t, std::uint32_t> number;
    own.take("device", number);
    std::tie(device.major, device.minor) = number;
    own.take("nsid", device.nsid);
    own.take("offset", device.offset);
    own.require_empty();
    controller.block_devices.push_back(device);
  }
  if (transport == "soft") {
    controller.open = soft_transport(settings, controller.name);
  } else if (transport == "qtest") {
    controller.open = qtest_transport(settings);
  } else if (transport == "vfio") {
    controller.open = vfio_transport(settings, controller.name);
  } else if (transport == "broker") {
    controller.open = broker_transport(settings, controller.name);
  } else {
    throw InvalidArgument("transport='" + transport + "' must be 'soft', 'qtest', 'vfio' or 'broker'");
  }
  settings.require_empty();
  return controller;
}

namespace {

Holder make_nvme(const py::kwargs& values) {
  nvme::NvmeConfig config;
  Settings settings(values);
  py::list controllers;
  settings.take("controllers", controllers);
  for (const py::handle& each : controllers) {
    config.controllers.push_back(to_controller(each.cast<py::dict>()));
  }
  settings.take("queues", config.queues);
  settings.take("queue_entries", config.queue_entries);
  settings.take("window_bytes", config.window_bytes);
  settings.take("command_timeout", config.command_timeout);
  settings.take("admin_timeout", config.admin_timeout);
  settings.take("retry_after", config.retry_after);
  settings.take("sgl", config.sgl);
  settings.take("window_commands", config.window_commands);
  settings.take<nvme::DeviceExecutor>("device_executor", config.device_executor,
                                      {{"auto", nvme::DeviceExecutor::kAuto},
                                       {"none", nvme::DeviceExecutor::kNone},
                                       {"cpu", nvme::DeviceExecutor::kCpu},
                                       {"cuda", nvme::DeviceExecutor::kCuda}});
  settings.take("device", config.device);
  settings.take("device_queues", config.device_queues);
  settings.take("device_blocks", config.device_blocks);
  settings.take("max_in_flight", config.max_in_flight);
  settings.take("max_results", config.max_results);
  settings.take("roots", config.roots);
  settings.take("unit", config.unit);
  settings.take("fault", config.fault);
  py::dict policy;
  settings.take("write_policy", policy);
  config.write_policy = to_policy(policy);
  settings.require_empty();
  py::gil_scoped_release release;
  return Holder(make_nvme_runtime(config).release());
}

SoftRule to_rule(const py::dict& values) {
  SoftRule rule;
  Settings settings(values);
  settings.take<SoftFault>("fault", rule.fault,
                           {{"ignore_doorbell", SoftFault::kIgnoreDoorbell},
                            {"drop_completion", SoftFault::kDropCompletion},
                            {"late_completion", SoftFault::kLateCompletion},
                            {"reorder", SoftFault::kReorder},
                            {"wrong_phase", SoftFault::kWrongPhase},
                            {"duplicate_completion", SoftFault::kDuplicateCompletion},
                            {"stray_completion", SoftFault::kStrayCompletion},
                            {"bad_head", SoftFault::kBadHead},
                            {"status", SoftFault::kStatus},
                            {"fatal", SoftFault::kFatal},
                            {"reset", SoftFault::kReset},
                            {"stuck", SoftFault::kStuck},
                            {"unplug", SoftFault::kUnplug}});
  settings.take("admin", rule.admin);
  settings.take("opcode", rule.opcode);
  settings.take("first_lba", rule.first_lba);
  settings.take("last_lba", rule.last_lba);
  settings.take("skip", rule.skip);
  settings.take("every", rule.every);
  settings.take("times", rule.times);
  settings.take("status", rule.status);
  settings.take("delay", rule.delay);
  settings.take("hold", rule.hold);
  settings.require_empty();
  if (rule.every == 0) {
    throw InvalidArgument("every=0 must be 1 or more");
  }
  return rule;
}

py::dict counters_of(const SoftControl& control) {
  const nvme::SoftCounters counters = control.counters();
  return py::dict("commands"_a = counters.commands, "reads"_a = counters.reads, "writes"_a = counters.writes,
                  "flushes"_a = counters.flushes, "bytes"_a = counters.bytes, "aborts"_a = counters.aborts,
                  "queues_made"_a = counters.queues_made, "queues_deleted"_a = counters.queues_deleted,
                  "enables"_a = counters.enables, "shutdowns"_a = counters.shutdowns,
                  "faults"_a = counters.faults, "most_commands"_a = counters.most_commands,
                  "most_bytes"_a = counters.most_bytes, "copy_seconds"_a = counters.copy_seconds,
                  "longest_copy"_a = counters.longest_copy, "copy_under_way"_a = counters.copy_under_way);
}

}  // namespace

void bind_nvme(py::module_& module) {
  using Release = py::call_guard<py::gil_scoped_release>;
  module.def("make_nvme", &make_nvme);
  module.def(
      "nvme_soft_rate",
      [](std::uint64_t commands, std::uint32_t bytes, std::uint32_t depth, std::uint32_t batch) {
        return testing::measure_soft_rate(commands, bytes, depth, batch).count();
      },
      "commands"_a, "bytes"_a, "depth"_a, "batch"_a, Release());
  py::class_<SoftControl, std::shared_ptr<SoftControl>>(module, "NvmeSoftControl")
      .def(py::init<>())
      .def("add", [](SoftControl& control, const py::dict& rule) { control.add(to_rule(rule)); })
      .def("heal", &SoftControl::heal, Release())
      .def("violations", &SoftControl::violations)
      .def("counters", &counters_of)
      .def(
          "wait_faults",
          [](SoftControl& control, std::uint64_t count, double timeout) {
            const Duration limit = *to_timeout(timeout);
            py::gil_scoped_release release;
            return control.wait_faults(count, limit);
          },
          "count"_a, "timeout"_a);
}

}  // namespace tutti::runtime::bindings
