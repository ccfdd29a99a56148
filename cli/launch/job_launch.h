// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "ballast/v1/tensor.pb.h"
#include "cli/command/progress_source.h"
#include "cli/launch/chaos.h"
#include "cli/launch/log_merger.h"
#include "cli/launch/progress_display.h"
#include "cli/launch/supervisor.h"

namespace ballast {

// What to start.
struct LaunchPlan {
  std::string job_file;
  int servers = 1;
  int workers = 1;
  // For the workers: what is to be otherwise than in the job file, and their GPUs: {"--mode", "async"}.
  std::vector<std::string> job_flags;
  std::string device = "auto";
  // What makes them known to each other.
  std::vector<std::string> server_security;
  std::vector<std::string> worker_security;
  // Of each worker.
  int threads = 1;
  // The steps of which workers leave timelines, "1-200"; empty: none.
  std::string trace_steps;
  // Has a folder `logs`.
  std::string run_dir;
  std::string server_binary;
  std::string worker_binary;
  // Of the job; servers get a folder each for anything but NONE, and under STANDBY each has a standby instead.
  v1::Durability durability;
  // The manifest of the checkpoint that the job goes on from; empty: it begins anew.
  std::string resume;
  // For the processes to find each other.
  int gather_seconds = 300;
  // How often one process that died is started again.
  int max_restarts = 3;
  std::optional<ChaosPlan> chaos;
};

// Where a worker leaves its timeline.
std::string WorkerTracePath(const std::string& run_dir, int rank);

// How it ended.
struct LaunchResult {
  // As the program should exit.
  int exit_status = 0;
  // Empty on success and when interrupted: who failed and how.
  std::string error;
  // Of processes that died.
  int restarts = 0;
};

// The processes of one job on this machine, from the first start to the last end. A worker that died, by a signal or
// having lost what only it needs, is started again; so is a server whose job outlives it, in the same place. Of a
// server and its standby either may hold the shard: they are processes of one rank, told apart by how they were
// started. Where the job goes back to its checkpoints, a server's death ends all processes, and all are started again.
// When one fails in another way, or too often, it stops the others; when this process is asked to end it asks the
// workers to, so that they save what is there. No child outlives it. Does not read the job file or the run folder.
// Thread safety: confined to the main thread.
class JobLaunch : private ProcessListener {
 public:
  using Connect = std::function<std::unique_ptr<ProgressSource>(const std::string& address)>;

  // Longest waits.
  static constexpr absl::Duration kStart = absl::Seconds(15);
  static constexpr absl::Duration kStop = absl::Seconds(5);
  // For workers that finish a step and save.
  static constexpr absl::Duration kSave = absl::Seconds(20);

  JobLaunch(LaunchPlan plan, LogMerger* logs, ProgressDisplay* display, Connect connect)
      : plan_(std::move(plan)), logs_(logs), display_(display), connect_(std::move(connect)) {}

  // Once. Blocks until every process has ended.
  LaunchResult Run();

 private:
  // One process; those started again have a new one. Indexes agree with the supervisor's and the logs'.
  struct Child {
    bool server = false;
    // Of servers: the second one of its rank.
    bool standby = false;
    int rank = 0;

    std::string Name(absl::string_view separator) const;
    // Comes back to the coordinator's state.
    bool coordinates() const { return server && !standby && rank == 0; }
    std::vector<std::string> flags;
    // Of its rank, before it.
    int restarts = 0;
    // It was told to end, so its end is no failure.
    bool asked = false;
    // Killed from here, to see what happens: that does not count.
    bool killed_by_chaos = false;
    std::optional<ExitStatus> end;
    // When another is started in its place.
    std::optional<absl::Time> restart_at;
  };

  void OnOutput(int child, absl::string_view bytes) override { logs_->Write(child, bytes); }
  void OnEnd(int child, const ExitStatus& status) override;
  void OnSignal(int signal) override;

  // Again: in the place of all that were there and have ended.
  absl::Status StartAll(bool again);
  absl::Status StartServer(int rank, bool standby, const std::string& resume, bool again);
  std::vector<std::string> WorkerFlags(int rank) const;
  // As the one whose place it takes, where there was one.
  absl::Status StartChild(Child child, bool again);
  // Whether its end leaves the job as it is, with another process in its place or without it.
  bool Outlives(int child);
  // Never, of one that is not to be started again.
  absl::Time RestartTime(int child) const;
  absl::Status RestartDue();
  // Under checkpoint: the whole job, from the newest checkpoint.
  absl::Status RestartAll();
  // What servers that are started now resume from.
  std::string ResumeManifest() const;
  // With the address that it had.
  std::vector<std::string> FlagsAgain(const Child& child) const;
  // Tells the coordinator who has ended; one that it knows to have done its part is not started again.
  void ReportEnds(const v1::GetProgressResponse& progress, ProgressSource& source);
  // Asks how far the job is; answers when to look again.
  absl::Time Look(ProgressSource& source);
  // Which pairs the coordinator says are in step.
  void NotePairs(const v1::GetProgressResponse& progress);
  // The server that runs as that process; -1: none.
  int RunningServer(uint64_t process) const;
  // Whether the job outlives its loss now, as far as is known.
  bool MayStrike(int child) const;
  void InjectKill();
  bool AnyToRestart() const;
  // When there is something to do next, at `latest` if there is not.
  absl::Time NextEvent(absl::Time latest) const;
  bool with_standby() const { return plan_.durability.mode() == v1::Durability::STANDBY; }
  // Whether it runs, and was not killed_by_chaos.
  bool Alive(int child) const { return supervisor_->running(child) && !children_[child].killed_by_chaos; }
  // The files to which a server writes the addresses of its data port and of its control port.
  std::string AddressFile(const Child& server) const;
  std::string ControlFile(const Child& server) const;
  // Empty when the server or the user ended the wait.
  absl::StatusOr<std::string> WaitForAddress(const std::string& path);
  absl::Status Watch();
  // Polls until `done`, a second signal or the deadline; whether it is done.
  bool PollUntil(absl::Duration timeout, const std::function<bool()>& done);
  // Asks the coordinator which child is at fault, and gives that one time to end by itself.
  void AwaitAccused();
  // Asks all with that part to end, kills those that do not.
  void Stop(bool servers, bool workers, absl::Duration grace);
  void StopAll();
  bool AnyRunning(bool servers, bool workers) const;
  bool failed() const { return !failures_.empty(); }
  // Among the failures: the one that the coordinator holds at fault, else the first.
  int Culprit() const;
  std::string DescribeFailure(int child) const;

  const LaunchPlan plan_;
  LogMerger* const logs_;
  ProgressDisplay* const display_;
  const Connect connect_;
  std::unique_ptr<Supervisor> supervisor_;
  std::vector<Child> children_;
  // Children that ended and should not have, in the order of their ends.
  std::vector<int> failures_;
  // The child that the coordinator holds at fault; -1: none.
  int accused_ = -1;
  int signals_ = 0;
  // Server 0's control port.
  std::string coordinator_;
  int restarts_ = 0;
  // Of the whole job; whether another is due.
  int job_restarts_ = 0;
  bool restart_all_ = false;
  // Children whose end the coordinator is still to hear of.
  std::vector<int> unreported_;
  // Once the job runs.
  std::optional<Chaos> chaos_;
  // Children of pairs of which either could hold the shard alone when last heard of, each with the other.
  std::map<int, int> in_step_;
};

}  // namespace ballast
