// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace tutti::runtime {

/// Base of every error of this library. `what()` names the argument, its value and the rule it broke.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A setting or an argument is outside its documented range.
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

/// A target URI does not follow the grammar in target_uri.hpp.
class InvalidUri : public Error {
 public:
  using Error::Error;
};

/// A handle is stale, was consumed, is of another kind or belongs to another runtime.
class InvalidHandle : public Error {
 public:
  using Error::Error;
};

/// The object still has I/O in flight.
class Busy : public Error {
 public:
  using Error::Error;
};

/// shutdown() has begun.
class Closed : public Error {
 public:
  using Error::Error;
};

/// The calling process inherited the runtime by fork() and has none of its threads.
class Forked : public Error {
 public:
  using Error::Error;
};

/// The operating system refused; keeps errno and, where there is one, the path.
class SystemError : public Error {
 public:
  SystemError(int error_number, const std::string& message, std::string path = {})
      : Error(message), error_number_(error_number), path_(std::move(path)) {}

  [[nodiscard]] int error_number() const noexcept { return error_number_; }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

 private:
  int error_number_;
  std::string path_;
};

}  // namespace tutti::runtime
