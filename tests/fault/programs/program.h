// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/program/process.h"

namespace ballast {

// Owns a running program and its output, the end of which errors contain. Killed when it goes out of scope.
// Thread safety: confined to the main thread, like Process.
class Program {
 public:
  // words[0] is its path.
  static absl::StatusOr<std::unique_ptr<Program>> Start(std::vector<std::string> words);

  pid_t pid() const { return process_.pid(); }
  // Sends SIGSTOP, SIGCONT or another signal to its process group.
  void Signal(int signal) { process_.Signal(signal); }
  // Returns false if it has ended by itself.
  bool Runs() { return !process_.Reap(); }

  // Output so far: all of it, or at least the last half megabyte.
  const std::string& output();
  // Returns the next whole line that contains `text`; skips those before it. UNAVAILABLE if the program ends or
  // prints no such line in time.
  absl::StatusOr<std::string> AwaitLine(absl::string_view text, absl::Duration timeout);

  // DEADLINE_EXCEEDED if it still runs at the timeout.
  absl::StatusOr<ExitStatus> AwaitEnd(absl::Duration timeout);
  // Sends SIGKILL; returns after it has ended.
  absl::Status Kill();

  // Reads the output of programs until `deadline`, so that none blocks on a full pipe.
  static void Hear(absl::Span<Program* const> programs, absl::Time deadline);

 private:
  Program(std::string name, Process process) : name_(std::move(name)), process_(std::move(process)) {}
  // Returns true if there may be more output.
  bool ReadOutput();

  const std::string name_;
  Process process_;
  std::string output_;
  // Lines before this position were returned or skipped.
  size_t heard_ = 0;
};

}  // namespace ballast
