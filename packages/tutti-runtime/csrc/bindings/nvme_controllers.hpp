// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bindings.hpp"
#include "tutti/runtime/nvme/config.hpp"

namespace tutti::runtime::bindings {

/// A controller out of its dictionary. @throws InvalidArgument
[[nodiscard]] nvme::ControllerConfig to_controller(const py::dict& values);

}  // namespace tutti::runtime::bindings
