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

// Both ends close on exec, and at the end of its scope if not taken.
struct Pipe {
  int read = -1;
  int write = -1;

  Pipe() = default;
  Pipe(const Pipe&) = delete;
  ~Pipe() {
    Close(read);
    Close(write);
  }
  bool Open() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return false;
    read = ends[0];
    write = ends[1];
    return true;
  }
  static void Close(int& end) {
    if (end >= 0) close(end);
    end = -1;
  }
};

// exec resets signal handlers, but ignored and blocked signals are inherited.
void ResetSignals() {
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  for (int signal : {SIGPIPE, SIGINT, SIGTERM, SIGHUP, SIGCHLD}) ::signal(signal, SIG_DFL);
}

// Runs in the child between fork and exec: async-signal-safe calls only. Writes errno to `failure` if it fails.
// A negative input is empty.
[[noreturn]] void Execute(char* const* argv, pid_t parent, int input, int output, int errors, int failure) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The parent may have ended before prctl took effect.
  if (getppid() != parent) _exit(127);
  ResetSignals();
  if (input < 0) input = open("/dev/null", O_RDONLY);
  const bool connected = input >= 0 && dup2(input, STDIN_FILENO) >= 0 && dup2(output, STDOUT_FILENO) >= 0 &&
                         dup2(errors, STDERR_FILENO) >= 0;
  // Files that a library opened without O_CLOEXEC do not belong to the child.
  close_range(3, UINT_MAX, CLOSE_RANGE_CLOEXEC);
  if (connected) execv(argv[0], argv);
  const int error = errno;
  [[maybe_unused]] const ssize_t written = write(failure, &error, sizeof(error));
  _exit(127);
}

}  // namespace

std::string ExitStatus::ToString() const {
  if (lost) return "was lost with the connection to its host";
  if (!signaled) return absl::StrCat("ended with status ", number);
  const char* name = sigabbrev_np(number);
  return absl::StrCat("was killed by signal ", number, name == nullptr ? "" : absl::StrCat(" (SIG", name, ")"));
}

absl::StatusOr<Process> Process::Start(absl::Span<const std::string> argv) { return Start(argv, /*connected=*/false); }

absl::StatusOr<Process> Process::StartConnected(absl::Span<const std::string> argv) {
  return Start(argv, /*connected=*/true);
}

absl::StatusOr<Process> Process::Start(absl::Span<const std::string> argv, bool connected) {
  std::vector<char*> words;
  for (const std::string& word : argv) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  Pipe input, output, errors, failure;
  if (!output.Open() || !failure.Open() || (connected && (!input.Open() || !errors.Open()))) {
    return absl::ErrnoToStatus(errno, "cannot open a pipe");
  }
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    Execute(words.data(), parent, input.read, output.write, connected ? errors.write : output.write, failure.write);
  }
  if (pid < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot start ", argv[0]));
  Pipe::Close(failure.write);
  // Parent and child both do this, so that it holds for both as soon as they continue.
  setpgid(pid, pid);
  for (int end : {output.read, input.write, errors.read}) {
    if (end >= 0) fcntl(end, F_SETFL, O_NONBLOCK);
  }
  Process process(pid, std::exchange(output.read, -1), std::exchange(input.write, -1), std::exchange(errors.read, -1));
  int error = 0;
  ssize_t got;
  do {
    got = read(failure.read, &error, sizeof(error));
  } while (got < 0 && errno == EINTR);
  if (got > 0) return absl::ErrnoToStatus(error, absl::StrCat("cannot run ", argv[0]));
  return process;
}

Process::Process(Process&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      output_(std::exchange(other.output_, -1)),
      input_(std::exchange(other.input_, -1)),
      errors_(std::exchange(other.errors_, -1)),
      status_(other.status_) {}

Process::~Process() {
  CloseOutput();
  CloseInput();
  CloseErrors();
  if (pid_ <= 0 || status_.has_value()) return;
  Signal(SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void Process::CloseOutput() { Pipe::Close(output_); }
void Process::CloseInput() { Pipe::Close(input_); }
void Process::CloseErrors() { Pipe::Close(errors_); }

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
