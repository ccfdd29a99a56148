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

  bool ok() const { return !signaled && number == 0; }
  // Returns "ended with status 1" or "was killed by signal 9 (SIGKILL)".
  std::string ToString() const;
};

// Owns one child process in its own process group, with empty input and one pipe for stdout and stderr. Invariant: a
// signal is sent only before the child is reaped, so it never reaches another process that reuses the id. The kernel
// kills the child when the thread that started it ends for any reason. Does not know what the child prints or does.
// Thread safety: confined to the thread that started it, which should be the main one.
class Process {
 public:
  // argv[0] is a path. NOT_FOUND, PERMISSION_DENIED … name it if it cannot be executed.
  static absl::StatusOr<Process> Start(absl::Span<const std::string> argv);

  Process(Process&& other) noexcept;
  Process& operator=(Process&&) = delete;
  // Kills and reaps the child if it is still running.
  ~Process();

  pid_t pid() const { return pid_; }
  // Non-blocking read end of the pipe; -1 once closed.
  int output() const { return output_; }
  void CloseOutput();

  // Signals the whole group. Does nothing once reaped.
  void Signal(int signal);

  // Returns whether the child has ended; never blocks. If it has, kills the rest of its group, then reaps it.
  bool Reap();
  // Set once reaped.
  const std::optional<ExitStatus>& status() const { return status_; }

 private:
  Process(pid_t pid, int output) : pid_(pid), output_(output) {}

  pid_t pid_;
  int output_;
  std::optional<ExitStatus> status_;
};

}  // namespace ballast
