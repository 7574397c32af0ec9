// SPDX-License-Identifier: Apache-2.0
// Headers of this folder are compiled for the CPU and, by nvcc, for the GPU: no allocation, no exceptions, no
// standard containers, no virtual functions.
#pragma once

#if defined(__CUDACC__)
#define TUTTI_HD __host__ __device__ __forceinline__
#else
#define TUTTI_HD inline
#endif
