// SPDX-License-Identifier: Apache-2.0
#include "bindings.hpp"

PYBIND11_MODULE(_core, module) {
  namespace bindings = tutti::runtime::bindings;
  module.doc() = "Compiled part of tutti_runtime; use the package, not this module.";
  bindings::translate_errors();
  bindings::bind_ordering(module);
  bindings::Class runtime = bindings::bind_runtime(module);
  bindings::bind_targets(runtime);
  bindings::bind_extents(module);
  bindings::bind_testing(module);
  bindings::bind_nvme_bus(module);
  bindings::bind_memory(runtime);
  bindings::bind_cuda(module);
  bindings::bind_factories(module, runtime);
  bindings::bind_nvme(module);
  bindings::bind_nvme_layers(module);
  bindings::bind_nvme_broker(module);
}
