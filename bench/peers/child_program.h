// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/program/process.h"

namespace ballast {

// A child process and what it says. Killed with its group when it goes out of scope.
// Thread safety: confined to the main thread.
class ChildProgram {
 public:
  static absl::StatusOr<ChildProgram> Start(const std::vector<std::string>& argv);

  pid_t pid() const { return process_.pid(); }
  // Output and errors, as far as they were heard.
  const std::string& said() const { return said_; }
  // "; it said: ..." of the end of it, for a message; empty where it said nothing.
  std::string LastWords() const;

  // Waits until it says something, or at most for `timeout`; false once it says no more, which is its end.
  bool Hear(absl::Duration timeout);
  // Hears all that it says, to its end. DEADLINE_EXCEEDED where that takes longer than `timeout`.
  absl::StatusOr<ExitStatus> HearToEnd(absl::Duration timeout);

 private:
  explicit ChildProgram(Process process) : process_(std::move(process)) {}

  Process process_;
  std::string said_;
};

}  // namespace ballast
