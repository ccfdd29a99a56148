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
#include "cli/command/server_connection.h"
#include "cli/display/log_merger.h"
#include "cli/display/progress_display.h"
#include "cli/hosts/fleet.h"
#include "cli/launch/chaos.h"
#include "cli/launch/culprit_finder.h"
#include "cli/launch/restart_policy.h"

namespace ballast {

// The processes of a job and their settings. Size: one field for each flag of `ballast launch`.
struct LaunchPlan {
  // Name of the job.
  std::string job;
  // The resolved job, which each worker reads.
  std::string job_file;
  int servers = 1;
  int workers = 1;
  std::string device = "auto";
  // Number of GPUs per worker, or "all"; empty: the worker's default.
  std::string gpus;
  // Flags for certificates and tokens; empty: none.
  std::vector<std::string> server_security;
  std::vector<std::string> worker_security;
  // Flags for the tokens that may read a worker's HTTP pages; empty: those of worker_security.
  std::vector<std::string> worker_pages;
  // Compute threads per worker; 0: each host's cores, shared out among its workers.
  int threads = 1;
  // Steps in the workers' timelines, such as "1-200"; empty: no timelines.
  std::string trace_steps;
  // The traceparent of the workers' timelines; empty without `trace_steps`.
  std::string traceparent;
  // Already contains a directory `logs`.
  std::string run_dir;
  std::string server_binary;
  std::string worker_binary;
  // With NONE, servers have no state directory. With STANDBY, each server has a standby, and only server 0, which hosts
  // the coordinator, has a state directory. Otherwise each server has one.
  v1::Durability durability;
  // Manifest of the checkpoint to resume from; empty: the job starts from the beginning.
  std::string resume;
  // Timeout for all processes to join.
  int gather_seconds = 300;
  // Maximum number of restarts per process.
  int max_restarts = 3;
  std::optional<ChaosPlan> chaos;
  // Hosts on which the processes run; empty: all on this machine. With another host, `run_dir` is an absolute path.
  std::vector<JobHost> hosts;
  RemoteShell shell;
  // Files that the workers read, with absolute paths.
  std::vector<std::string> inputs;
  // A user's program and its arguments, which each worker runs instead of `worker_binary`; empty: none. Its directory,
  // an absolute path, and variables of its environment, NAME=VALUE, in addition to those of its rank.
  std::vector<std::string> program;
  std::string program_directory;
  std::vector<std::string> program_variables;
};

std::string WorkerTracePath(const std::string& run_dir, int rank);
std::string ServerTracePath(const std::string& run_dir, int rank, bool standby);

// Returns the file to which server 0 of a launch writes the address of its control port.
std::string CoordinatorAddressPath(const std::string& run_dir);

// Called by JobLaunch; none may be set.
struct LaunchHooks {
  // Called with each poll of the job's progress.
  std::function<void(const v1::GetProgressResponse&)> progress;
  // Once all workers have ended without a failure, while the servers still run.
  std::function<void(const v1::GetProgressResponse&)> workers_ended;
};

struct LaunchResult {
  int exit_status = 0;
  // Names the process that failed and its error. Empty on success and if interrupted.
  std::string error;
  // Number of processes that were restarted.
  int restarts = 0;
};

// Owns the processes of one job, on this machine and on other hosts, from the first start to the last exit, and prints
// what happens to them. RestartPolicy decides which of them start again; a restarted server keeps its address. Either a
// server or its standby may hold the shard: they have the same rank and differ in how they were started. A failure
// stops the job. On SIGINT, SIGTERM or SIGHUP the workers save the model and stop. Before that, and after the job's
// end, the job takes a checkpoint, unless its durability is NONE. No child outlives this object, and no temporary file
// of theirs does. Does not read the job file. Thread safety: confined to the main thread.
// Size: the order of starting, watching and stopping is one story; its rules are in classes of their own.
class JobLaunch : private ProcessListener {
 public:
  using Connect = std::function<std::unique_ptr<ProgressSource>(const std::string& address)>;

  // Timeouts: for server 0 to write its address, for processes to exit, and for workers to finish a step and save.
  static constexpr absl::Duration kStart = absl::Seconds(15);
  static constexpr absl::Duration kStop = absl::Seconds(5);
  static constexpr absl::Duration kSave = absl::Seconds(20);

  JobLaunch(LaunchPlan plan, LogMerger* logs, ProgressDisplay* display, Connect connect, LaunchHooks hooks = {})
      : plan_(std::move(plan)),
        logs_(logs),
        display_(display),
        connect_(std::move(connect)),
        hooks_(std::move(hooks)),
        policy_(plan_.durability, plan_.max_restarts) {}

  // Blocks until every process has ended. Call at most once.
  LaunchResult Run();

 private:
  // One process. A restart appends a new Child. Indexes are the same in the fleet and the logs.
  struct Child {
    bool server = false;
    // Started as the standby of the server with its rank.
    bool standby = false;
    int rank = 0;
    // Number of its host.
    int host = 0;

    std::string Name(absl::string_view separator) const;
    // Hosts the coordinator, and recovers its state after a restart.
    bool coordinates() const { return server && !standby && rank == 0; }
    std::vector<std::string> flags;
    // Number of restarts that count toward --max_restarts, including the one that is due.
    int restarts = 0;
    // Told to exit.
    bool asked = false;
    bool killed_by_chaos = false;
    std::optional<ExitStatus> end;
    // When its replacement starts.
    std::optional<absl::Time> restart_at;
  };

  void OnOutput(int child, absl::string_view bytes) override { logs_->Write(child, bytes); }
  void OnEnd(int child, const ExitStatus& status) override;
  void OnSignal(int signal) override;

  // Connects to the hosts, and checks that they can run the job. Returns OK if a signal ended that.
  absl::Status ConnectHosts();
  // Ends the connections to the hosts.
  void DisconnectHosts();
  // `again` is true for replacements, whose output is appended to the existing log.
  absl::Status StartAll(bool again);
  absl::Status StartServer(int rank, bool standby, const std::string& resume, bool again);
  absl::Status StartChild(Child child, bool again);
  // Returns whether another worker, or the other one of a pair of server and standby, still runs.
  bool HasSubstitute(const Child& child) const;
  // InfiniteFuture if the child is not to be restarted.
  absl::Time RestartTime(int child) const;
  absl::Status RestartDue();
  // Under durability CHECKPOINT: kills all processes and starts the job from its newest checkpoint.
  absl::Status RestartAll();
  // Returns the newest checkpoint of this run, otherwise `plan_.resume`.
  std::string ResumeManifest() const;
  // Returns the flags for a replacement; a server keeps its predecessor's addresses.
  std::vector<std::string> FlagsAgain(const Child& child) const;
  // Reports ended processes to the coordinator; cancels the restart of a worker that had finished the job.
  void ReportEnds(const v1::GetProgressResponse& progress, ProgressSource& source);
  // Polls the job's progress; returns the time of the next poll.
  absl::Time PollProgress(ProgressSource& source);
  // Records which servers and standbys are in step, according to the coordinator.
  void NotePairs(const v1::GetProgressResponse& progress);
  // Returns the index of the running server that is this member; -1: none.
  int RunningServer(const v1::GetProgressResponse::MemberStatus& status) const;
  // Returns whether the job would survive the loss of this child now, as far as is known.
  bool MayKill(int child) const;
  void InjectKill();
  bool AnyToRestart() const;
  // Returns the time of the next restart or kill, but at most `latest`.
  absl::Time NextEvent(absl::Time latest) const;
  bool with_standby() const { return plan_.durability.mode() == v1::Durability::STANDBY; }
  bool Alive(int child) const { return fleet_->running(child) && !children_[child].killed_by_chaos; }
  // Files to which a server writes the addresses of its data port and of its control port.
  std::string AddressFile(const Child& server) const;
  std::string ControlFile(const Child& server) const;
  // File to which a server or worker writes the address of its HTTP pages: logs/NAME.http.
  std::string HttpFile(const Child& child) const;
  // Gives a server or worker a free port for its HTTP pages, and the directory for its flight dump.
  void AddStatusFlags(Child& child) const;
  // Returns an empty address if a signal or a failure ended the wait.
  absl::StatusOr<std::string> WaitForAddress(const std::string& path);
  absl::Status Watch();
  // Polls until `done`, the timeout, or a further signal (after a failure, any signal). Returns `done()`.
  bool PollUntil(absl::Duration timeout, const std::function<bool()>& done);
  // Asks the coordinator which child caused the failure, and waits a moment for that child to exit by itself.
  void AwaitAccused();
  // Waits until the job has taken a checkpoint, and prints its position or why there is none.
  void SaveCheckpoint();
  // Sends SIGTERM to these children, and SIGKILL to those that still run after `timeout`.
  void Stop(bool servers, bool workers, absl::Duration timeout);
  void StopAll();
  // Tells the hook that the workers have ended.
  void ReportWorkersEnded();
  bool AnyRunning(bool servers, bool workers) const;
  bool failed() const { return culprit_.failed(); }
  // Prints the last lines of the culprit.
  LaunchResult Failure() const;

  const LaunchPlan plan_;
  LogMerger* const logs_;
  ProgressDisplay* const display_;
  const Connect connect_;
  const LaunchHooks hooks_;
  RestartPolicy policy_;
  CulpritFinder culprit_;
  std::unique_ptr<Fleet> fleet_;
  std::vector<Child> children_;
  int signals_ = 0;
  // Address of server 0's control port.
  std::string coordinator_;
  int restarts_ = 0;
  // A restart of the whole job is due.
  bool restart_all_ = false;
  // Ended children not yet reported to the coordinator.
  std::vector<int> unreported_;
  // Set once the job runs.
  std::optional<Chaos> chaos_;
  // Maps a server to its standby and vice versa if, at the last poll, either could take over the shard alone.
  std::map<int, int> in_step_;
};

}  // namespace ballast
