# SPDX-License-Identifier: Apache-2.0
#
# tutti_find_torch_stable()
#
#   Defines tutti::torch_stable, an interface target for extensions on LibTorch's stable ABI:
#   torch's headers, the oldest torch whose symbols may be used, and libtorch_cpu.so.
#
#   TUTTI_TORCH_TARGET_VERSION  cache variable, torch's packed version number (default 2.10)
#
# find_package(Torch) is not used: it needs a CUDA toolkit when torch was built with CUDA, and it adds
# libraries that would tie the extension to one torch build. torch is not imported either, only located.

set(
  TUTTI_TORCH_TARGET_VERSION
  0x020a000000000000
  CACHE STRING
  "Oldest torch that a stable-ABI extension runs on"
)

function(tutti_find_torch_stable)
  if(TARGET tutti::torch_stable)
    return()
  endif()
  find_package(Python 3.10 REQUIRED COMPONENTS Interpreter)
  execute_process(
    COMMAND
      ${Python_EXECUTABLE} -c
      "import importlib.util, pathlib; s = importlib.util.find_spec('torch'); print(pathlib.Path(s.origin).parent.as_posix() if s else '')"
    OUTPUT_VARIABLE torch_dir
    OUTPUT_STRIP_TRAILING_WHITESPACE
    COMMAND_ERROR_IS_FATAL ANY
  )
  if(NOT EXISTS "${torch_dir}/include/torch/csrc/stable/library.h")
    message(
      FATAL_ERROR
      "torch with stable-ABI headers was not found by ${Python_EXECUTABLE} (looked in '${torch_dir}'). "
      "Install torch 2.13.0 there, or build with pip's build isolation, which does it."
    )
  endif()
  add_library(tutti_torch_stable INTERFACE)
  add_library(tutti::torch_stable ALIAS tutti_torch_stable)
  target_include_directories(tutti_torch_stable SYSTEM INTERFACE "${torch_dir}/include")
  target_compile_definitions(tutti_torch_stable INTERFACE TORCH_TARGET_VERSION=${TUTTI_TORCH_TARGET_VERSION})
  # torch's headers put __FILE__ into their error texts.
  target_compile_options(
    tutti_torch_stable
    INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fmacro-prefix-map=${torch_dir}/include/=>
  )
  target_link_libraries(tutti_torch_stable INTERFACE "${torch_dir}/lib/libtorch_cpu.so")
endfunction()
