// SPDX-License-Identifier: Apache-2.0
#include "common/program/process.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace ballast {
namespace {

// Both ends close on exec.
struct Pipe {
  int read = -1;
  int write = -1;
};

absl::StatusOr<Pipe> OpenPipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "cannot open a pipe");
  return Pipe{ends[0], ends[1]};
}

void Close(const Pipe& pipe) {
  close(pipe.read);
  close(pipe.write);
}

// exec resets signal handlers, but ignored and blocked signals are inherited.
void ResetSignals() {
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  for (int signal : {SIGPIPE, SIGINT, SIGTERM, SIGHUP, SIGCHLD}) ::signal(signal, SIG_DFL);
}

// Runs in the child between fork and exec: async-signal-safe calls only. Writes errno to `failure` if it fails.
[[noreturn]] void Execute(char* const* argv, pid_t parent, int output, int failure) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The parent may have ended before prctl took effect.
  if (getppid() != parent) _exit(127);
  ResetSignals();
  const int nothing = open("/dev/null", O_RDONLY);
  const bool connected = nothing >= 0 && dup2(nothing, STDIN_FILENO) >= 0 && dup2(output, STDOUT_FILENO) >= 0 &&
                         dup2(output, STDERR_FILENO) >= 0;
  // Files that a library opened without O_CLOEXEC do not belong to the child.
  close_range(3, UINT_MAX, CLOSE_RANGE_CLOEXEC);
  if (connected) execv(argv[0], argv);
  const int error = errno;
  [[maybe_unused]] const ssize_t written = write(failure, &error, sizeof(error));
  _exit(127);
}

}  // namespace

std::string ExitStatus::ToString() const {
  if (!signaled) return absl::StrCat("ended with status ", number);
  const char* name = sigabbrev_np(number);
  return absl::StrCat("was killed by signal ", number, name == nullptr ? "" : absl::StrCat(" (SIG", name, ")"));
}

absl::StatusOr<Process> Process::Start(absl::Span<const std::string> argv) {
  std::vector<char*> words;
  for (const std::string& word : argv) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  absl::StatusOr<Pipe> output = OpenPipe();
  if (!output.ok()) return output.status();
  absl::StatusOr<Pipe> failure = OpenPipe();
  if (!failure.ok()) {
    Close(*output);
    return failure.status();
  }
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) Execute(words.data(), parent, output->write, failure->write);
  const int fork_error = errno;
  close(output->write);
  close(failure->write);
  if (pid < 0) {
    close(output->read);
    close(failure->read);
    return absl::ErrnoToStatus(fork_error, absl::StrCat("cannot start ", argv[0]));
  }
  // Parent and child both do this, so that it holds for both as soon as they continue.
  setpgid(pid, pid);
  fcntl(output->read, F_SETFL, O_NONBLOCK);
  Process process(pid, output->read);
  int error = 0;
  ssize_t got;
  do {
    got = read(failure->read, &error, sizeof(error));
  } while (got < 0 && errno == EINTR);
  close(failure->read);
  if (got > 0) return absl::ErrnoToStatus(error, absl::StrCat("cannot run ", argv[0]));
  return process;
}

Process::Process(Process&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), output_(std::exchange(other.output_, -1)), status_(other.status_) {}

Process::~Process() {
  CloseOutput();
  if (pid_ <= 0 || status_.has_value()) return;
  Signal(SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void Process::CloseOutput() {
  if (output_ >= 0) close(output_);
  output_ = -1;
}

void Process::Signal(int signal) {
  if (pid_ > 0 && !status_.has_value()) kill(-pid_, signal);
}

bool Process::Reap() {
  if (status_.has_value()) return true;
  siginfo_t info;
  info.si_pid = 0;
  // Leaves a zombie, so that the group's id cannot be reused before the kill.
  if (waitid(P_PID, pid_, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return false;
  kill(-pid_, SIGKILL);
  while (waitid(P_PID, pid_, &info, WEXITED) != 0 && errno == EINTR) {
  }
  status_ = ExitStatus{info.si_code != CLD_EXITED, info.si_status};
  return true;
}

}  // namespace ballast
