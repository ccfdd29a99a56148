// SPDX-License-Identifier: Apache-2.0
#include "common/signal_watch.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cstdint>

namespace ballast {

SignalWatch::SignalWatch(std::function<void(int, int)> on_signal) : on_signal_(std::move(on_signal)) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signals_ = signalfd(-1, &set, SFD_CLOEXEC);
  stop_ = eventfd(0, EFD_CLOEXEC);
  thread_ = std::thread([this] { Watch(); });
}

SignalWatch::~SignalWatch() {
  const uint64_t one = 1;
  if (write(stop_, &one, sizeof(one)) == sizeof(one)) thread_.join();
  close(signals_);
  close(stop_);
}

void SignalWatch::Watch() {
  int count = 0;
  while (true) {
    pollfd fds[] = {{signals_, POLLIN, 0}, {stop_, POLLIN, 0}};
    if (poll(fds, 2, -1) < 0) continue;
    if (fds[1].revents != 0) return;
    signalfd_siginfo info;
    if (read(signals_, &info, sizeof(info)) == sizeof(info)) on_signal_(static_cast<int>(info.ssi_signo), ++count);
  }
}

}  // namespace ballast
