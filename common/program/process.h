// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace ballast {

// How a process ended.
struct ExitStatus {
  // Killed by signal `number`; else it exited with `number`.
  bool signaled = false;
  int number = 0;

  bool ok() const { return !signaled && number == 0; }
  // "ended with status 1", "was killed by signal 9 (SIGKILL)".
  std::string ToString() const;
};

// One child process, in a process group of its own, its input empty, its output and errors in one pipe.
// Invariant: its id is signalled only while it is not yet reaped, so never hits a stranger that got the same id. The
// kernel kills it when the thread that started it ends, whatever way. Does not know what the child says or does.
// Thread safety: confined to the thread that started it, which should be the main one.
class Process {
 public:
  // argv[0] is a path. NOT_FOUND, PERMISSION_DENIED … name it where it cannot be executed.
  static absl::StatusOr<Process> Start(absl::Span<const std::string> argv);

  Process(Process&& other) noexcept;
  Process& operator=(Process&&) = delete;
  // Kills and reaps what still runs.
  ~Process();

  pid_t pid() const { return pid_; }
  // Non-blocking end of the pipe; -1 once closed.
  int output() const { return output_; }
  void CloseOutput();

  // To the whole group. Does nothing once reaped.
  void Signal(int signal);

  // Whether it has ended; never blocks. Kills what is left in its group, then reaps it.
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
