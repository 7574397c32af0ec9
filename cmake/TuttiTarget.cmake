# SPDX-License-Identifier: Apache-2.0
#
# tutti_configure_target(<target>)
#
# Gives a C++ target the settings that every Tutti library shares: C++20 without compiler extensions, warnings,
# hidden symbols, position independent code, source paths cut down to the package's own folder, and, when
# TUTTI_SANITIZE is set, a sanitizer.
#
#   TUTTI_SANITIZE   "" (default), "address" (with undefined behaviour) or "thread"
#   TUTTI_WERROR     OFF by default: turn warnings into errors (the checks of this repository do)
include_guard(GLOBAL)

set(TUTTI_SANITIZE "" CACHE STRING "Sanitizer for the C++ code: empty, address or thread")
set_property(CACHE TUTTI_SANITIZE PROPERTY STRINGS "" address thread)
option(TUTTI_WERROR "Treat compiler warnings as errors" OFF)

function(tutti_configure_target target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(
    ${target}
    PROPERTIES
      CXX_EXTENSIONS OFF
      CXX_VISIBILITY_PRESET hidden
      VISIBILITY_INLINES_HIDDEN ON
      POSITION_INDEPENDENT_CODE ON
  )
  target_compile_options(
    ${target}
    PRIVATE
      $<$<COMPILE_LANGUAGE:CXX>:-Wall>
      $<$<COMPILE_LANGUAGE:CXX>:-Wextra>
      $<$<COMPILE_LANGUAGE:CXX>:-Wshadow>
      $<$<COMPILE_LANGUAGE:CXX>:-fmacro-prefix-map=${CMAKE_CURRENT_SOURCE_DIR}/=>
      $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${TUTTI_WERROR}>>:-Werror>
  )
  if(TUTTI_SANITIZE STREQUAL "address")
    target_compile_options(${target} PUBLIC -fsanitize=address,undefined -fno-omit-frame-pointer -g)
    target_link_options(${target} PUBLIC -fsanitize=address,undefined)
  elseif(TUTTI_SANITIZE STREQUAL "thread")
    target_compile_options(${target} PUBLIC -fsanitize=thread -g)
    target_link_options(${target} PUBLIC -fsanitize=thread)
  elseif(NOT TUTTI_SANITIZE STREQUAL "")
    message(FATAL_ERROR "TUTTI_SANITIZE is '${TUTTI_SANITIZE}': use an empty value, address or thread")
  endif()
endfunction()
