# SPDX-License-Identifier: Apache-2.0
#
# tutti_find_cuda(<result>)
#
#   Sets <result> to ON when CUDA code is to be built. The caller enables the language then, at its top level:
#   a language that a function enables is not known outside it.
#
#   TUTTI_CUDA                  AUTO (where a compiler is found), ON or OFF
#   CMAKE_CUDA_ARCHITECTURES    the devices; by default Hopper, and code for the driver to compile on others from
#                               Ampere on
#
# The runtime is linked statically: it opens the driver at the first CUDA call, so that the library loads where
# there is none, and beside whatever runtime torch has.
include_guard(GLOBAL)

set(TUTTI_CUDA AUTO CACHE STRING "Build the CUDA kernels: AUTO, ON or OFF")
set_property(CACHE TUTTI_CUDA PROPERTY STRINGS AUTO ON OFF)

function(tutti_find_cuda result)
  set(${result} OFF PARENT_SCOPE)
  if(TUTTI_CUDA STREQUAL "OFF")
    return()
  endif()
  if(NOT TUTTI_CUDA MATCHES "^(AUTO|ON)$")
    message(FATAL_ERROR "TUTTI_CUDA is '${TUTTI_CUDA}': use AUTO, ON or OFF")
  endif()
  # Before check_language: its own trial project ends with an error when there are none.
  if(NOT CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES "80-virtual;90-real" CACHE STRING "CUDA devices to compile for" FORCE)
  endif()
  include(CheckLanguage)
  check_language(CUDA)
  if(NOT CMAKE_CUDA_COMPILER)
    if(TUTTI_CUDA STREQUAL "ON")
      message(FATAL_ERROR "TUTTI_CUDA is ON, but no CUDA compiler was found; set CUDACXX or install nvcc")
    endif()
    message(STATUS "No CUDA compiler: building the CPU kernels only")
    return()
  endif()
  set(${result} ON PARENT_SCOPE)
endfunction()
