// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <cstdlib>

#define CHECK(condition)                                                             \
  do {                                                                               \
    if (!(condition)) {                                                              \
      std::fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                                  \
    }                                                                                \
  } while (false)

#define CHECK_THROWS(type, expression)                                                        \
  do {                                                                                        \
    bool thrown = false;                                                                      \
    try {                                                                                     \
      static_cast<void>(expression);                                                          \
    } catch (const type&) {                                                                   \
      thrown = true;                                                                          \
    }                                                                                         \
    if (!thrown) {                                                                            \
      std::fprintf(stderr, "%s:%d: no %s from %s\n", __FILE__, __LINE__, #type, #expression); \
      std::exit(1);                                                                           \
    }                                                                                         \
  } while (false)
