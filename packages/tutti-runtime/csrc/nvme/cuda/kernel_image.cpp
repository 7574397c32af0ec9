// SPDX-License-Identifier: Apache-2.0
#include "kernel_image.hpp"

#if defined(TUTTI_NVME_KERNEL)
// The name of the file that the CUDA compiler wrote comes from the build.
asm(".pushsection .rodata\n"
    ".balign 16\n"
    ".hidden kTuttiNvmeKernelImage\n"
    ".global kTuttiNvmeKernelImage\n"
    "kTuttiNvmeKernelImage:\n"
    ".incbin \"" TUTTI_NVME_KERNEL
    "\"\n"
    ".popsection\n");
extern "C" const unsigned char kTuttiNvmeKernelImage[];
#endif

namespace tutti::runtime::nvme {

const void* kernel_image() noexcept {
#if defined(TUTTI_NVME_KERNEL)
  return kTuttiNvmeKernelImage;
#else
  return nullptr;
#endif
}

}  // namespace tutti::runtime::nvme
