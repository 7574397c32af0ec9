// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace tutti::runtime::nvme {

/// The compiled kernel (code for Hopper, and PTX for the driver to compile from Ampere on); null when this
/// library was built without a CUDA compiler.
[[nodiscard]] const void* kernel_image() noexcept;

}  // namespace tutti::runtime::nvme
