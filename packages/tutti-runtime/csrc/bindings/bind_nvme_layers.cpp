// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "nvme_controllers.hpp"
#include "settings.hpp"
#include "tutti/runtime/nvme/layer_engine.hpp"

namespace tutti::runtime::bindings {
namespace {

using namespace py::literals;
using nvme::LayerEngine;

constexpr py::ssize_t kSliceColumns = 6;

std::unique_ptr<LayerEngine> make_layers(const py::kwargs& values) {
  nvme::LayerEngineSettings engine;
  Settings settings(values);
  py::list specs;
  settings.take("controllers", specs);
  std::vector<nvme::ControllerConfig> configs;
  for (const py::handle& each : specs) {
    configs.push_back(to_controller(each.cast<py::dict>()));
  }
  std::string execution = "cpu";
  int device = 0;
  std::uint32_t blocks = 4;
  nvme::ControllerOptions options;
  double admin_timeout = 2;
  double command_timeout = 5;
  double retry_after = 1;
  double linger = engine.linger.count();
  double stay = engine.stay.count();
  settings.take("execution", execution);
  settings.take("device", device);
  settings.take("blocks", blocks);
  settings.take("queues", engine.queues);
  settings.take("queue_entries", engine.queue_entries);
  settings.take("window_commands", engine.window_commands);
  settings.take("window_bytes", engine.window_bytes);
  settings.take("ring_entries", engine.ring_entries);
  settings.take("sgl", engine.sgl);
  settings.take("linger", linger);
  settings.take("stay", stay);
  settings.take("admin_timeout", admin_timeout);
  settings.take("command_timeout", command_timeout);
  settings.take("retry_after", retry_after);
  settings.require_empty();
  engine.command_timeout = Duration(command_timeout);
  engine.retry_after = Duration(retry_after);
  engine.linger = Duration(linger);
  engine.stay = Duration(stay);
  options.admin_timeout = Duration(admin_timeout);
  options.max_queues = engine.queues;
  const bool on_gpu = pick<bool>("execution", execution, {{"cpu", false}, {"cuda", true}});
  py::gil_scoped_release release;
  auto teams = on_gpu ? nvme::make_cuda_teams(device, blocks) : nvme::make_cpu_teams();
  std::vector<std::unique_ptr<nvme::Controller>> controllers;
  controllers.reserve(configs.size());
  for (const nvme::ControllerConfig& config : configs) {
    controllers.push_back(std::make_unique<nvme::Controller>(config.open(), options));
  }
  return std::make_unique<LayerEngine>(std::move(controllers), std::move(teams), engine);
}

std::uint32_t add_window(LayerEngine& engine, std::uint64_t address, std::uint64_t size,
                         const std::string& kind, int device) {
  const auto memory_kind = pick<MemoryKind>("kind", kind,
                                            {{"host", MemoryKind::kHost},
                                             {"pinned_host", MemoryKind::kPinnedHost},
                                             {"device", MemoryKind::kDevice}});
  return engine.add_window(reinterpret_cast<std::byte*>(address), size, memory_kind, device);
}

std::uint32_t add_place(LayerEngine& engine, std::uint32_t drive, std::uint32_t nsid,
                        const std::vector<std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>>& extents) {
  std::vector<nvme::BlockExtent> blocks;
  blocks.reserve(extents.size());
  for (const auto& [begin, lba, count] : extents) {
    blocks.push_back({begin, lba, count});
  }
  return engine.add_place(drive, nsid, blocks);
}

std::uint32_t add_layer(LayerEngine& engine, const std::string& direction,
                        const py::array_t<std::uint64_t, py::array::c_style | py::array::forcecast>& rows) {
  if (rows.ndim() != 2 || rows.shape(1) != kSliceColumns) {
    throw InvalidArgument("slices must be an array of 6 columns");
  }
  const auto opcode = pick<nvme::IoOpcode>(
      "direction", direction, {{"read", nvme::IoOpcode::kRead}, {"write", nvme::IoOpcode::kWrite}});
  std::vector<nvme::LayerSlice> slices;
  const auto view = rows.unchecked<2>();
  for (py::ssize_t i = 0; i < rows.shape(0); ++i) {
    const auto number = [&](py::ssize_t column) {
      return static_cast<std::uint32_t>(std::min<std::uint64_t>(view(i, column), UINT32_MAX));
    };
    slices.push_back({number(0), number(1), number(2), view(i, 3), view(i, 4), view(i, 5)});
  }
  py::gil_scoped_release release;
  return engine.add_layer(opcode, slices);
}

py::dict counters_of(const LayerEngine& engine) {
  const nvme::LayerCounters counters = engine.counters();
  return py::dict("commands"_a = counters.commands, "doorbells"_a = counters.doorbells,
                  "strays"_a = counters.strays, "remade"_a = counters.remade, "resets"_a = counters.resets);
}

}  // namespace

void bind_nvme_layers(py::module_& module) {
  using Release = py::call_guard<py::gil_scoped_release>;
  module.def("nvme_missing_kernel", &nvme::missing_kernel);
  py::class_<LayerEngine>(module, "NvmeLayers")
      .def(py::init(&make_layers))
      .def("add_window", &add_window, "address"_a, "size"_a, "kind"_a, "device"_a, Release())
      .def("add_place", &add_place, "drive"_a, "nsid"_a, "extents"_a)
      .def("add_layer", &add_layer, "direction"_a, "slices"_a)
      .def("submit", &LayerEngine::submit, "layer"_a, Release())
      .def(
          "wait",
          [](LayerEngine& engine, std::uint64_t ticket, double timeout) {
            return engine.wait(ticket, *to_timeout(timeout));
          },
          "ticket"_a, "timeout"_a, Release())
      .def("statuses",
           [](const LayerEngine& engine, std::uint32_t layer) {
             const auto words = engine.statuses(layer);
             return py::array_t<std::int32_t>(static_cast<py::ssize_t>(words.size()), words.data());
           })
      .def("device_statuses",
           [](const LayerEngine& engine, std::uint32_t layer) {
             return reinterpret_cast<std::uint64_t>(engine.device_statuses(layer));
           })
      .def("done_word",
           [](const LayerEngine& engine, std::uint32_t layer) {
             return reinterpret_cast<std::uint64_t>(engine.done_word(layer));
           })
      .def("play_drives", &LayerEngine::play_drives, Release())
      .def("teams", &LayerEngine::teams)
      .def("counters", &counters_of)
      .def("stop", &LayerEngine::stop, Release());
}

}  // namespace tutti::runtime::bindings
