// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/time/time.h"
#include "ballast/v1/tensor.pb.h"
#include "common/program/process.h"

namespace ballast {

// A process of a job that has ended.
struct EndedProcess {
  bool server = false;
  // Started as the standby of the server with its rank.
  bool standby = false;
  int rank = 0;
  ExitStatus end;
  // Told to exit, so its exit is not a failure.
  bool asked = false;
  // Killed by --chaos; not counted toward --max_restarts.
  bool killed_by_chaos = false;
  // Number of earlier restarts that count toward --max_restarts.
  int restarts = 0;
  // A process that can continue without this one still runs: another worker, or, of a server and its standby, the
  // other one.
  bool substitute = false;
};

// Decides what follows the end of a process. A worker that was killed by a signal or lost its device or connections
// is restarted, and so is a server if the job survives its loss; with durability CHECKPOINT, the loss of a server
// restarts the whole job. The job continues without a process that died too often, if it can; any other failure ends
// the job. Owns the number of restarts of the whole job; the caller keeps those of each process. Invariant: a kill by
// --chaos never counts. Does not know the clock or how a process is started. Thread safety: none.
class RestartPolicy {
 public:
  enum class Action {
    // The end was expected.
    kNone,
    // A replacement starts after `pause`.
    kRestart,
    // All processes are killed, and the job starts from its newest checkpoint.
    kRestartJob,
    // The job continues without the process.
    kContinue,
    // The job has failed.
    kFail,
  };
  struct Decision {
    Action action = Action::kFail;
    // Text for the user, such as "restarting it in 200ms (restart 1 of 3)". Empty: nothing to announce.
    std::string announcement;
    absl::Duration pause = absl::ZeroDuration();
    // With kRestart: `EndedProcess::restarts` of the replacement.
    int restarts = 0;
  };

  // `max_restarts` is the limit for each process and for the whole job.
  RestartPolicy(const v1::Durability& durability, int max_restarts)
      : durability_(durability), max_restarts_(max_restarts) {}

  // Call once for each process that ends. `job_started` is false until the coordinator's address is known; no process
  // is restarted before that.
  Decision OnEnd(const EndedProcess& process, bool job_started);

  // Returns when a replacement starts whose pause ends at `due`. Until the coordinator knows that a worker has ended
  // (`reported`), its rank is not free, and the replacement waits longer.
  static absl::Time StartTime(absl::Time due, bool server, bool reported);

 private:
  Decision Restart(const EndedProcess& process) const;

  const v1::Durability durability_;
  const int max_restarts_;
  // Restarts of the whole job, not counting those caused by --chaos.
  int job_restarts_ = 0;
};

}  // namespace ballast
