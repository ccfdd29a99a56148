// SPDX-License-Identifier: Apache-2.0
#include "common/program/signal_watch.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cerrno>

namespace ballast {
namespace {

// The last one only if it is wanted.
constexpr std::array<int, 3> kSignals = {SIGINT, SIGTERM, SIGQUIT};
constexpr unsigned char kStop = 0;

// The pipe's ends; a signal handler can access only globals.
int pipe_read = -1;
int pipe_write = -1;
std::array<struct sigaction, kSignals.size()> before;

void Handle(int signal) {
  const int saved = errno;
  const unsigned char byte = static_cast<unsigned char>(signal);
  // A full pipe already holds more signals than anyone counts.
  [[maybe_unused]] const ssize_t written = write(pipe_write, &byte, 1);
  errno = saved;
}

}  // namespace

SignalWatch::SignalWatch(std::function<void(int, int)> on_signal, std::function<void()> on_quit)
    : on_signal_(std::move(on_signal)), on_quit_(std::move(on_quit)) {
  int ends[2] = {-1, -1};
  // Without a pipe the signals keep their default action and end the process immediately.
  if (pipe2(ends, O_CLOEXEC) != 0) return;
  pipe_read = ends[0];
  pipe_write = ends[1];
  thread_ = std::thread([this] { Watch(); });
  struct sigaction action = {};
  action.sa_handler = Handle;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < signals(); ++i) sigaction(kSignals[i], &action, &before[i]);
}

SignalWatch::~SignalWatch() {
  if (!thread_.joinable()) return;
  for (size_t i = 0; i < signals(); ++i) sigaction(kSignals[i], &before[i], nullptr);
  while (write(pipe_write, &kStop, 1) < 0 && errno == EINTR) {
  }
  thread_.join();
  close(pipe_read);
  close(pipe_write);
}

size_t SignalWatch::signals() const { return on_quit_ == nullptr ? kSignals.size() - 1 : kSignals.size(); }

void SignalWatch::Watch() {
  int count = 0;
  unsigned char byte = kStop;
  while (true) {
    const ssize_t got = read(pipe_read, &byte, 1);
    if (got < 0 && errno == EINTR) continue;
    if (got != 1 || byte == kStop) return;
    if (byte == SIGQUIT) {
      on_quit_();
    } else {
      on_signal_(byte, ++count);
    }
  }
}

}  // namespace ballast
