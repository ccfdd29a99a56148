// SPDX-License-Identifier: Apache-2.0
#include "cli/hosts/supervisor.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace ballast {
namespace {

// Longest poll while there are sources, which have deadlines of their own.
constexpr absl::Duration kSourceInterval = absl::Seconds(1);
constexpr int kPieceBytes = 64 * 1024;
constexpr int kPiecesPerRound = 4;
// Upper bound for the contents of a pipe whose writer has ended.
constexpr int kPiecesAtEnd = 64;

}  // namespace

absl::StatusOr<std::unique_ptr<Supervisor>> Supervisor::Create(ProcessListener* listener) {
  sigset_t heard, before;
  sigemptyset(&heard);
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&heard, signal);
  pthread_sigmask(SIG_BLOCK, &heard, &before);
  const int signals = signalfd(-1, &heard, SFD_CLOEXEC | SFD_NONBLOCK);
  if (signals < 0) {
    const int error = errno;
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return absl::ErrnoToStatus(error, "cannot open a signal descriptor");
  }
  return std::unique_ptr<Supervisor>(new Supervisor(listener, signals, before));
}

Supervisor::~Supervisor() {
  // Kill all before waiting for any.
  for (auto& child : children_) child->Signal(SIGKILL);
  children_.clear();
  close(signals_);
  pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
}

absl::StatusOr<int> Supervisor::Start(absl::Span<const std::string> argv) {
  absl::StatusOr<Process> process = Process::Start(argv);
  if (!process.ok()) return process.status();
  children_.push_back(std::make_unique<Process>(std::move(*process)));
  return static_cast<int>(children_.size()) - 1;
}

void Supervisor::Poll(absl::Duration timeout) {
  std::vector<pollfd> waiting = {{signals_, POLLIN, 0}};
  std::vector<int> owners = {-1};
  for (size_t child = 0; child < children_.size(); ++child) {
    if (children_[child]->output() < 0) continue;
    waiting.push_back({children_[child]->output(), POLLIN, 0});
    owners.push_back(static_cast<int>(child));
  }
  for (const PollSource* source : sources_) source->AddDescriptors(waiting);
  if (!sources_.empty()) timeout = std::min(timeout, kSourceInterval);
  const int64_t milliseconds = absl::ToInt64Milliseconds(absl::Ceil(timeout, absl::Milliseconds(1)));
  if (poll(waiting.data(), waiting.size(), static_cast<int>(milliseconds)) > 0) {
    for (size_t i = 1; i < owners.size(); ++i) {
      if (waiting[i].revents != 0) ReadOutput(owners[i], kPiecesPerRound);
    }
    if (waiting[0].revents != 0) ReadSignals();
  }
  ReapEnded();
  for (PollSource* source : sources_) source->OnPoll();
}

void Supervisor::ReadSignals() {
  signalfd_siginfo info;
  while (read(signals_, &info, sizeof(info)) == sizeof(info)) {
    if (info.ssi_signo != SIGCHLD) listener_->OnSignal(static_cast<int>(info.ssi_signo));
  }
}

void Supervisor::ReadOutput(int child, int max_pieces) {
  Process& process = *children_[child];
  std::string buffer(kPieceBytes, '\0');
  for (int piece = 0; piece < max_pieces && process.output() >= 0; ++piece) {
    const ssize_t got = read(process.output(), buffer.data(), buffer.size());
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) {
      process.CloseOutput();
      return;
    }
    listener_->OnOutput(child, absl::string_view(buffer.data(), got));
  }
}

void Supervisor::ReapEnded() {
  for (size_t child = 0; child < children_.size(); ++child) {
    Process& process = *children_[child];
    if (process.status().has_value() || !process.Reap()) continue;
    ReadOutput(static_cast<int>(child), kPiecesAtEnd);
    process.CloseOutput();
    listener_->OnEnd(static_cast<int>(child), *process.status());
  }
}

}  // namespace ballast
