// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace ballast {

struct ExitStatus {
  // True if killed by signal `number`; otherwise `number` is the exit status.
  bool signaled = false;
  int number = 0;
  // The connection to its host broke, upon which the host kills it.
  bool lost = false;

  bool ok() const { return !signaled && number == 0; }
  // Returns "ended with status 1", "was killed by signal 9 (SIGKILL)" or "was lost with the connection to its host".
  std::string ToString() const;
};

// Owns one child process in its own process group, with empty input and one pipe for stdout and stderr, or with a pipe
// for each of the three. Invariant: a signal is sent only before the child is reaped, so it never reaches another
// process that reuses the id. The kernel kills the child when the thread that started it ends for any reason. Does not
// know what the child prints or does. Thread safety: confined to the thread that started it, which should be the main
// one.
class Process {
 public:
  // argv[0] is a path. NOT_FOUND, PERMISSION_DENIED … name it if it cannot be executed.
  static absl::StatusOr<Process> Start(absl::Span<const std::string> argv);
  // The same, with a pipe to its input and separate pipes for stdout and stderr.
  static absl::StatusOr<Process> StartConnected(absl::Span<const std::string> argv);

  Process(Process&& other) noexcept;
  Process& operator=(Process&&) = delete;
  // Kills and reaps the child if it is still running.
  ~Process();

  pid_t pid() const { return pid_; }
  // Non-blocking read end of the pipe; -1 once closed.
  int output() const { return output_; }
  void CloseOutput();
  // Non-blocking ends of the further pipes of StartConnected; -1 if closed or absent.
  int input() const { return input_; }
  int errors() const { return errors_; }
  void CloseInput();
  void CloseErrors();

  // Signals the whole group. Does nothing once reaped.
  void Signal(int signal);

  // Returns whether the child has ended; never blocks. If it has, kills the rest of its group, then reaps it.
  bool Reap();
  // Set once reaped.
  const std::optional<ExitStatus>& status() const { return status_; }

 private:
  Process(pid_t pid, int output, int input, int errors) : pid_(pid), output_(output), input_(input), errors_(errors) {}
  static absl::StatusOr<Process> Start(absl::Span<const std::string> argv, bool connected);

  pid_t pid_;
  int output_;
  int input_;
  int errors_;
  std::optional<ExitStatus> status_;
};

}  // namespace ballast
