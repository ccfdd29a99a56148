// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/hosts/remote_host.h"
#include "cli/hosts/supervisor.h"

namespace ballast {

// Owns the processes of one job on all of its hosts: children of this process, and those of an agent on another host.
// Numbers them in the order of their start, and passes their events to one listener. Does not know their purpose.
// Thread safety: confined to the thread that created it, which should be the main thread.
class Fleet : private ProcessListener {
 public:
  // `hosts` are numbered from 0; of a local one, only `host` counts. `listener` must outlive the fleet.
  static absl::StatusOr<std::unique_ptr<Fleet>> Create(ProcessListener* listener,
                                                       std::vector<RemoteHost::Options> hosts);
  Fleet(const Fleet&) = delete;
  // Kills and reaps the local children; processes on other hosts are killed there once the connections end.
  ~Fleet() override;

  // Connects to all hosts. Returns when all are ready, with the error of the first that is not within
  // RemoteHost::kConnect, or once `stop` returns true.
  absl::Status Connect(const std::function<bool()>& stop);
  // Ends the connections, and waits until nothing is left on other hosts. Returns the names of those that did not
  // confirm that in time.
  std::vector<std::string> Close(absl::Duration timeout);

  // Cores of a host that is ready.
  int cores(int host) const;
  // Returns whether all hosts with servers see the run directory of the launch under the same path.
  bool shares_run_dir() const;

  // Starts `program`, or on another host the server or worker there. Returns the process's number.
  absl::StatusOr<int> StartOwn(int host, bool server, const std::string& program,
                               const std::vector<std::string>& flags);
  // Starts a program that every host has under this path.
  absl::StatusOr<int> Start(int host, const std::string& program, const std::vector<std::string>& words);
  // Blocks for at most `timeout` until there are events, and passes them to the listener. May return early.
  void Poll(absl::Duration timeout) { supervisor_->Poll(timeout); }
  // Does nothing if the process has ended.
  void Signal(int process, int signal);
  // Id of the process on its host; 0 until a remote one has started.
  uint64_t pid(int process) const;
  bool running(int process) const { return !processes_[process].ended; }

 private:
  struct Member {
    int host = 0;
    // Number of the supervisor; of a remote process: -1.
    int child = -1;
    bool ended = false;
  };
  // Passes events under the numbers of the fleet.
  struct RemoteListener;

  explicit Fleet(ProcessListener* listener);
  absl::StatusOr<int> StartHere(int host, const std::string& program, const std::vector<std::string>& words);
  // Adds a process of another host, and returns its number.
  int AddRemote(int host);
  void OnOutput(int child, absl::string_view bytes) override { listener_->OnOutput(children_[child], bytes); }
  void OnEnd(int child, const ExitStatus& status) override { End(children_[child], status); }
  void OnSignal(int signal) override { listener_->OnSignal(signal); }
  void End(int process, const ExitStatus& status);

  ProcessListener* const listener_;
  std::unique_ptr<RemoteListener> remote_listener_;
  // Null: this machine. Destroyed after the supervisor, which polls them.
  std::vector<std::unique_ptr<RemoteHost>> hosts_;
  std::unique_ptr<Supervisor> supervisor_;
  std::vector<Member> processes_;
  // Process of each child of the supervisor.
  std::vector<int> children_;
};

}  // namespace ballast
