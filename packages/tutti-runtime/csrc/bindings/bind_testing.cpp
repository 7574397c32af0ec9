// SPDX-License-Identifier: Apache-2.0
#include <functional>
#include <map>
#include <string>

#include "bindings.hpp"
#include "tutti/runtime/error.hpp"
#include "tutti/runtime/testing/fault_path.hpp"

namespace tutti::runtime::bindings {
namespace {

using namespace py::literals;
using testing::FaultControl;
using testing::FaultPlan;
using testing::FaultRule;

/// Key -> what its value sets. Unknown keys are errors.
template <typename T>
using Keys = std::map<std::string, std::function<void(T&, const py::handle&)>>;

template <typename T>
T from_dict(const char* what, const py::handle& value, const Keys<T>& keys) {
  T result;
  for (const auto& [key, item] : value.cast<py::dict>()) {
    const std::string name = py::str(key);
    const auto place = keys.find(name);
    if (place == keys.end()) {
      std::string known;
      for (const auto& each : keys) {
        known.append(known.empty() ? "" : ", ").append(each.first);
      }
      std::string message(what);
      message.append(" has no key '").append(name).append("' (known: ").append(known).append(")");
      throw InvalidArgument(message);
    }
    try {
      place->second(result, item);
    } catch (const py::cast_error&) {
      throw InvalidArgument(std::string(what) + ": " + name + "=" + std::string(py::repr(item)) +
                            " is of the wrong type");
    }
  }
  return result;
}

template <typename T, typename V>
std::function<void(T&, const py::handle&)> set(V T::* field) {
  return [field](T& object, const py::handle& value) { object.*field = value.template cast<V>(); };
}

void set_direction(FaultRule& rule, const py::handle& value) {
  const auto name = value.cast<std::string>();
  const std::map<std::string, Direction> names = {
      {"read", Direction::kRead}, {"write", Direction::kWrite}, {"flush", Direction::kFlush}};
  const auto place = names.find(name);
  if (place == names.end()) {
    throw InvalidArgument("direction='" + name + "' must be 'read', 'write' or 'flush'");
  }
  rule.direction = place->second;
}

void set_delay(FaultRule& rule, const py::handle& value) {
  if (py::isinstance<py::tuple>(value) || py::isinstance<py::list>(value)) {
    std::tie(rule.delay_min, rule.delay_max) = value.cast<std::pair<double, double>>();
  } else {
    rule.delay_min = rule.delay_max = value.cast<double>();
  }
}

FaultPlan to_plan(const py::handle& value) {
  static const Keys<FaultRule> rule_keys = {
      {"direction", set_direction},
      {"target", set(&FaultRule::target)},
      {"item", set(&FaultRule::item)},
      {"skip", set(&FaultRule::skip)},
      {"every", set(&FaultRule::every)},
      {"times", set(&FaultRule::times)},
      {"delay", set_delay},
      {"hang", set(&FaultRule::hang)},
      {"error", set(&FaultRule::error)},
      {"short", set(&FaultRule::short_bytes)},
  };
  static const Keys<FaultPlan> plan_keys = {
      {"rules",
       [](FaultPlan& plan, const py::handle& rules) {
         for (const py::handle& rule : rules) {
           plan.rules.push_back(from_dict<FaultRule>("fault rule", rule, rule_keys));
         }
       }},
      {"reorder", set(&FaultPlan::reorder)},
      {"accept", set(&FaultPlan::accept)},
      {"bandwidth", set(&FaultPlan::bandwidth)},
      {"per_target", set(&FaultPlan::per_target)},
      {"write_cost", set(&FaultPlan::write_cost)},
      {"seed", set(&FaultPlan::seed)},
  };
  return from_dict<FaultPlan>("fault plan", value, plan_keys);
}

}  // namespace

void bind_testing(py::module_& module) {
  using Release = py::call_guard<py::gil_scoped_release>;
  py::class_<FaultControl, std::shared_ptr<FaultControl>>(module, "FaultControl")
      .def(py::init([](const py::dict& plan) { return std::make_shared<FaultControl>(to_plan(plan)); }),
           "plan"_a = py::dict())
      .def("set_plan",
           [](FaultControl& control, const py::dict& value) {
             FaultPlan plan = to_plan(value);
             py::gil_scoped_release release;
             control.set_plan(std::move(plan));
           })
      .def("release", &FaultControl::release, Release())
      .def("held", &FaultControl::held, Release())
      .def(
          "wait_held",
          [](FaultControl& control, std::size_t count, double timeout) {
            const Duration limit = *to_timeout(timeout);
            py::gil_scoped_release release;
            return control.wait_held(count, limit);
          },
          "count"_a, "timeout"_a);
}

}  // namespace tutti::runtime::bindings
