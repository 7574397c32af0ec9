// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <string>

#include "bindings.hpp"
#include "tutti/runtime/detail/runtime_util.hpp"
#include "tutti/runtime/error.hpp"
#include "tutti/runtime/ordering.hpp"

namespace tutti::runtime::bindings {
namespace {

MemoryWord to_word(const py::object& value) {
  const auto fields = value.cast<py::tuple>();
  return {to_handle(fields[0]), fields[1].cast<std::uint64_t>(), fields[2].cast<std::uint64_t>()};
}

TimePoint to_deadline(TimePoint now, double seconds) {
  if (std::isnan(seconds) || seconds < 0) {
    throw InvalidArgument("timeout=" + std::to_string(seconds) +
                          " must be None or a number of seconds from 0 up");
  }
  if (std::isinf(seconds)) {
    return TimePoint::max();
  }
  return now + std::chrono::duration_cast<Clock::duration>(std::min(Duration(seconds), detail::kForever));
}

void set_deadlines(SubmitOptions& options, const py::object& timeout) {
  const TimePoint now = Clock::now();
  if (!py::isinstance<py::array>(timeout)) {
    options.deadline = to_deadline(now, timeout.cast<double>());
    return;
  }
  const auto seconds = timeout.cast<py::array_t<double, py::array::c_style | py::array::forcecast>>();
  options.deadlines.reserve(static_cast<std::size_t>(seconds.size()));
  for (py::ssize_t i = 0; i < seconds.size(); ++i) {
    options.deadlines.push_back(to_deadline(now, seconds.data()[i]));
  }
}

}  // namespace

SubmitOptions to_options(const py::object& timeout, const py::object& after, const py::object& gate) {
  SubmitOptions options;
  if (!timeout.is_none()) {
    set_deadlines(options, timeout);
  }
  if (py::isinstance<Dependency>(after)) {
    options.after = after.cast<std::shared_ptr<Dependency>>();
  } else if (!after.is_none()) {
    options.after_word = to_word(after);
  }
  if (py::isinstance<Gate>(gate)) {
    options.gate = gate.cast<std::shared_ptr<Gate>>();
  } else if (!gate.is_none()) {
    options.gate_word = to_word(gate);
  }
  return options;
}

void bind_ordering(py::module_& module) {
  // NOLINTBEGIN(bugprone-unused-raii): the module keeps what is registered
  py::class_<Dependency, std::shared_ptr<Dependency>>(module, "Dependency");
  py::class_<Gate, std::shared_ptr<Gate>>(module, "Gate");
  // NOLINTEND(bugprone-unused-raii)
}

}  // namespace tutti::runtime::bindings
