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

// A program that runs, and what it says. Errors have the end of that. Killed where it goes out of scope.
// Thread safety: confined to the main thread, as Process is.
class Program {
 public:
  // words[0] is its path.
  static absl::StatusOr<std::unique_ptr<Program>> Start(std::vector<std::string> words);

  pid_t pid() const { return process_.pid(); }
  // SIGSTOP, SIGCONT …; to its process group.
  void Signal(int signal) { process_.Signal(signal); }
  // Whether it has not ended by itself.
  bool Runs() { return !process_.Reap(); }

  // What it said so far: all, or the last half a megabyte at least.
  const std::string& output();
  // The next whole line with `text`; those before it are passed over. UNAVAILABLE where it ends or says no such in
  // time.
  absl::StatusOr<std::string> AwaitLine(absl::string_view text, absl::Duration patience);

  // DEADLINE_EXCEEDED where it still runs then.
  absl::StatusOr<ExitStatus> AwaitEnd(absl::Duration patience);
  // With SIGKILL; returns when it is gone.
  absl::Status Kill();

  // Takes up what programs say, so that none waits for a reader, until `deadline`.
  static void Hear(absl::Span<Program* const> programs, absl::Time deadline);

 private:
  Program(std::string name, Process process) : name_(std::move(name)), process_(std::move(process)) {}
  // Whether there may be more to come.
  bool ReadOutput();

  const std::string name_;
  Process process_;
  std::string output_;
  // Lines before it were answered or passed over.
  size_t heard_ = 0;
};

}  // namespace ballast
