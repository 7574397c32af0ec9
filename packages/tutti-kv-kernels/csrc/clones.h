// SPDX-License-Identifier: Apache-2.0
#pragma once

// Compiles a function once for each instruction set; the loader picks the widest that the processor runs.
// Needs ifunc support, which glibc on x86-64 has. Other platforms get the one portable version.
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define TUTTI_KV_CLONES __attribute__((target_clones("default", "avx2", "arch=x86-64-v4")))
#else
#define TUTTI_KV_CLONES
#endif
