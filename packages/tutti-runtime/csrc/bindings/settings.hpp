// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <string>
#include <utility>

#include "bindings.hpp"
#include "tutti/runtime/write_policy.hpp"

namespace tutti::runtime::bindings {

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

/// A write policy out of its dictionary. @throws InvalidArgument
[[nodiscard]] WritePolicy to_policy(const py::dict& values);

}  // namespace tutti::runtime::bindings
