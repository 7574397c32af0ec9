// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

namespace tutti::runtime::detail {

/// Starts a thread that takes no signals: handlers of the host program run on its own threads. Its own faults
/// are left: blocked, they would end the process whatever handler there is.
template <typename Function>
[[nodiscard]] std::thread start_io_thread(const char* name, Function function) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  for (const int fault : {SIGBUS, SIGSEGV, SIGILL, SIGFPE}) {
    sigdelset(&all, fault);
  }
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread thread(std::move(function));
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    pthread_setname_np(thread.native_handle(), name);
    return thread;
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
}

}  // namespace tutti::runtime::detail
