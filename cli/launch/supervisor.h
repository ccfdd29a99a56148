// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <signal.h>

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/program/process.h"

namespace ballast {

// Who hears what a supervisor's children do. Children are numbered from 0 in the order of their start.
class ProcessListener {
 public:
  virtual ~ProcessListener() = default;
  virtual void OnOutput(int child, absl::string_view bytes) = 0;
  // Called once, after the child's last output.
  virtual void OnEnd(int child, const ExitStatus& status) = 0;
  // SIGINT, SIGTERM or SIGHUP came to this process.
  virtual void OnSignal(int signal) = 0;
};

// Several child processes and the signals that come to this one, heard in one loop. Knows nothing of what the children
// are for. While it lives SIGINT, SIGTERM, SIGHUP and SIGCHLD are blocked in its thread and in those started from it.
// Thread safety: confined to the thread that made it, which should be the main one.
class Supervisor {
 public:
  // The listener must outlive it.
  static absl::StatusOr<std::unique_ptr<Supervisor>> Create(ProcessListener* listener);
  Supervisor(const Supervisor&) = delete;
  // Kills and reaps every child that is left; the listener does not hear of it.
  ~Supervisor();

  // Answers the child's number.
  absl::StatusOr<int> Start(absl::Span<const std::string> argv);

  // Waits until something happens, at most for `timeout`, and tells the listener all that did.
  void Poll(absl::Duration timeout);

  // Ended children get none.
  void Signal(int child, int signal) { children_[child]->Signal(signal); }
  pid_t pid(int child) const { return children_[child]->pid(); }
  bool running(int child) const { return !children_[child]->status().has_value(); }

 private:
  Supervisor(ProcessListener* listener, int signals, const sigset_t& mask_before)
      : listener_(listener), signals_(signals), mask_before_(mask_before) {}

  void HearSignals();
  // Reads at most some pieces, so that a child that never stops talking cannot starve the others.
  void HearOutput(int child, int most_pieces);
  void HearEnds();

  ProcessListener* const listener_;
  const int signals_;
  const sigset_t mask_before_;
  std::vector<std::unique_ptr<Process>> children_;
};

}  // namespace ballast
