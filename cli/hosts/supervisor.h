// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>
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

// Receives the events of a supervisor's children, which are numbered from 0 in the order of their start.
class ProcessListener {
 public:
  virtual ~ProcessListener() = default;
  virtual void OnOutput(int child, absl::string_view bytes) = 0;
  // Called once, after the child's last output.
  virtual void OnEnd(int child, const ExitStatus& status) = 0;
  // This process received SIGINT, SIGTERM or SIGHUP.
  virtual void OnSignal(int signal) = 0;
};

// Descriptors of other things than children, which one loop serves too.
class PollSource {
 public:
  virtual ~PollSource() = default;
  virtual void AddDescriptors(std::vector<pollfd>& waiting) const = 0;
  // Called after each poll, and at least once a second during polls. Must not block.
  virtual void OnPoll() = 0;
};

// Owns child processes, and handles their output, their exits and this process's signals in one loop. Does not know the
// purpose of the children. While it exists, SIGINT, SIGTERM, SIGHUP and SIGCHLD are blocked in its thread and in
// threads started from it. Thread safety: confined to the thread that created it, which should be the main thread.
class Supervisor {
 public:
  // `listener` must outlive the supervisor.
  static absl::StatusOr<std::unique_ptr<Supervisor>> Create(ProcessListener* listener);
  Supervisor(const Supervisor&) = delete;
  // Kills and reaps the remaining children without calling the listener.
  ~Supervisor();

  // Returns the child's number.
  absl::StatusOr<int> Start(absl::Span<const std::string> argv);

  // `source` must outlive the supervisor.
  void AddSource(PollSource* source) { sources_.push_back(source); }

  // Blocks for at most `timeout` until there are events, and passes them to the listener. May return early.
  void Poll(absl::Duration timeout);

  // Does nothing if the child has ended.
  void Signal(int child, int signal) { children_[child]->Signal(signal); }
  pid_t pid(int child) const { return children_[child]->pid(); }
  bool running(int child) const { return !children_[child]->status().has_value(); }

 private:
  Supervisor(ProcessListener* listener, int signals, const sigset_t& mask_before)
      : listener_(listener), signals_(signals), mask_before_(mask_before) {}

  void ReadSignals();
  // Reads at most `max_pieces`, so that a child with endless output cannot starve the others.
  void ReadOutput(int child, int max_pieces);
  void ReapEnded();

  ProcessListener* const listener_;
  const int signals_;
  const sigset_t mask_before_;
  std::vector<std::unique_ptr<Process>> children_;
  std::vector<PollSource*> sources_;
};

}  // namespace ballast
