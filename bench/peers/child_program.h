// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/program/process.h"

namespace ballast {

// Owns a child process and its output. Killed with its process group by the destructor. Thread safety: confined to
// the main thread.
class ChildProgram {
 public:
  static absl::StatusOr<ChildProgram> Start(const std::vector<std::string>& argv);

  pid_t pid() const { return process_.pid(); }
  // The output and errors read so far.
  const std::string& said() const { return said_; }
  // "; it said: ..." with the end of its output, for an error message; empty without output.
  std::string LastWords() const;

  // Waits for output, at most for `timeout`; returns false at the end of the output.
  bool Hear(absl::Duration timeout);
  // Reads all output until the process exits. DEADLINE_EXCEEDED if that takes longer than `timeout`.
  absl::StatusOr<ExitStatus> HearToEnd(absl::Duration timeout);

 private:
  explicit ChildProgram(Process process) : process_(std::move(process)) {}

  Process process_;
  std::string said_;
};

}  // namespace ballast
