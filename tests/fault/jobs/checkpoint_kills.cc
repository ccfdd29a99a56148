// SPDX-License-Identifier: Apache-2.0
#include <poll.h>
#include <signal.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/storage/checkpoint_folder.h"
#include "common/storage/file_system.h"
#include "tests/fault/jobs/job_faults.h"
#include "tests/fault/jobs/job_files.h"
#include "tests/fault/jobs/job_processes.h"
#include "tests/fault/programs/program.h"

namespace ballast {
namespace {

// Timeout for the next checkpoint to begin, and to be complete: one is due each second.
constexpr absl::Duration kTestTimeout = absl::Seconds(60);

// Watches a directory for new files. Thread safety: none.
class FolderWatch {
 public:
  explicit FolderWatch(const std::string& path)
      : handle_(inotify_init1(IN_CLOEXEC | IN_NONBLOCK)),
        watch_(inotify_add_watch(handle_, path.c_str(), IN_CREATE | IN_MOVED_TO)) {}
  FolderWatch(const FolderWatch&) = delete;
  ~FolderWatch() { close(handle_); }

  bool works() const { return watch_ >= 0; }

  // Returns true if a file appeared before the deadline.
  bool Await(absl::Time deadline) {
    pollfd waiting = {handle_, POLLIN, 0};
    const int64_t left = absl::ToInt64Milliseconds(deadline - absl::Now());
    if (poll(&waiting, 1, static_cast<int>(std::max<int64_t>(left, 0))) != 1) return false;
    alignas(inotify_event) char events[4096];
    while (read(handle_, events, sizeof(events)) > 0) {
    }
    return true;
  }

 private:
  const int handle_;
  const int watch_;
};

class Run {
 public:
  explicit Run(const CheckpointKillOptions& options)
      : options_(options),
        end_(absl::Now() + options.time),
        folder_(PosixFileSystem(), options.folder + "/checkpoints"),
        random_(options.seed) {}

  absl::StatusOr<CheckpointKillCounts> Do() {
    std::filesystem::create_directories(folder_.path());
    // Some megabytes, so that writing them takes a while.
    const auto job = WriteJobFolder(options_.folder, {.name = "checkpoint_kills",
                                                      .policy = "sync { deterministic: true }",
                                                      .durability = "mode: CHECKPOINT checkpoint_seconds: 1",
                                                      .units = 40000});
    if (!job.ok()) return job.status();
    do {
      if (absl::Status status = Round(*job); !status.ok()) return status;
    } while (counts_.rounds < options_.rounds && absl::Now() < end_);
    return counts_;
  }

 private:
  absl::Status Round(const std::string& job) {
    const std::string run_dir = absl::StrCat(options_.folder, "/run-", counts_.rounds + counts_.given_up);
    JobProcesses processes({.server = options_.server,
                            .worker = options_.worker,
                            .job_file = job,
                            .run_dir = run_dir,
                            .workers = 1,
                            .server_flags = {"--checkpoint_dir", folder_.path(), "--resume", "auto"}});
    if (absl::Status status = processes.StartServers(); !status.ok()) return status;
    const bool resumes = newest_ > 0 && absl::StrContains(processes.servers()[0]->output(),
                                                          absl::StrCat("resumes from ", folder_.ManifestPath(newest_)));
    FolderWatch watch(folder_.path());
    if (!watch.works()) return absl::UnavailableError(absl::StrCat("cannot watch ", folder_.path()));
    if (absl::Status status = processes.StartWorkers(); !status.ok()) return status;
    const absl::StatusOr<bool> begun = AwaitBegin(processes, watch);
    if (!begun.ok()) return begun.status();
    if (!*begun) {
      ++counts_.given_up;
      return absl::OkStatus();
    }
    if (counts_.rounds == 0) {
      if (absl::Status status = AwaitFirst(watch); !status.ok()) return status;
    }
    if (absl::Status status = DieSoon(processes); !status.ok()) return status;
    ++counts_.rounds;
    counts_.resumed += resumes;
    std::filesystem::remove_all(run_dir);
    return Judge();
  }

  // Waits for the first file of a checkpoint; returns false if the job fails before it.
  absl::StatusOr<bool> AwaitBegin(JobProcesses& processes, FolderWatch& watch) const {
    const absl::Time deadline = absl::Now() + kTestTimeout;
    while (absl::Now() < deadline && processes.worker(0).Runs()) {
      if (watch.Await(absl::Now() + absl::Milliseconds(200))) return true;
    }
    const std::string& said = processes.servers()[0]->output();
    if (!processes.worker(0).Runs() && absl::StrContains(said, "the job has failed: ")) return false;
    return absl::DeadlineExceededError(absl::StrCat("timed out waiting for the checkpoint after number ", newest_,
                                                    "; output of server 0:\n", said, "output of worker 0:\n",
                                                    processes.worker(0).output()));
  }

  // Waits for one complete checkpoint to fall back to, and measures how long it takes.
  absl::Status AwaitFirst(FolderWatch& watch) {
    const absl::Time begun = absl::Now();
    absl::StatusOr<CheckpointFolder::Entry> newest = folder_.Newest();
    while (absl::IsNotFound(newest.status())) {
      if (!watch.Await(begun + kTestTimeout))
        return absl::DeadlineExceededError("timed out waiting for the first checkpoint");
      newest = folder_.Newest();
    }
    if (!newest.ok()) return newest.status();
    writing_ = absl::Now() - begun;
    newest_ = newest->id;
    return absl::OkStatus();
  }

  // Kills the servers, slightly apart, at a random moment from the first file to a little after the last.
  absl::Status DieSoon(JobProcesses& processes) {
    const absl::Duration most = std::max(2 * writing_, absl::Milliseconds(5));
    processes.Hear(absl::Now() + most * Share());
    const size_t first = random_() % processes.servers().size();
    processes.servers()[first]->Signal(SIGKILL);
    if (random_() % 2 == 0) processes.Hear(absl::Now() + absl::Milliseconds(10) * Share());
    return processes.KillServers();
  }

  double Share() { return std::uniform_real_distribution<double>(0, 1)(random_); }

  // Checks the remaining checkpoints.
  absl::Status Judge() {
    auto verify = Program::Start({options_.ballast, "checkpoint", "verify", folder_.path(), "--json"});
    if (!verify.ok()) return verify.status();
    const absl::StatusOr<ExitStatus> verified = (*verify)->AwaitEnd(kTestTimeout);
    if (!verified.ok()) return verified.status();
    if (!verified->ok()) Wrong(absl::StrCat("verify ", verified->ToString(), ": ", (*verify)->output()));
    const absl::StatusOr<CheckpointFolder::Entry> newest = folder_.Newest();
    if (!newest.ok()) return newest.status();
    if (newest->id < newest_)
      Wrong(absl::StrCat("the newest checkpoint is number ", newest->id, ", want at least ", newest_));
    ++(newest->id > newest_ ? counts_.new_left : counts_.old_left);
    if (newest->id == newest_) counts_.pieces_left += PiecesAbove(newest_);
    newest_ = newest->id;
    return absl::OkStatus();
  }

  bool PiecesAbove(uint64_t id) const {
    const absl::StatusOr<uint64_t> next = folder_.NextId();
    return next.ok() && *next > id + 1;
  }

  void Wrong(const std::string& what) {
    if (counts_.wrong++ == 0) counts_.first_wrong = what;
  }

  const CheckpointKillOptions options_;
  const absl::Time end_;
  const CheckpointFolder folder_;
  std::mt19937_64 random_;
  // Time from the first file to the manifest.
  absl::Duration writing_;
  // Id of the newest complete checkpoint.
  uint64_t newest_ = 0;
  CheckpointKillCounts counts_;
};

}  // namespace

nlohmann::ordered_json CheckpointKillCounts::ToJson() const {
  nlohmann::ordered_json json = JsonOf(*this);
  if (wrong > 0) json["first_wrong"] = first_wrong;
  return json;
}

absl::StatusOr<CheckpointKillCounts> KillInCheckpoints(const CheckpointKillOptions& options) {
  return Run(options).Do();
}

}  // namespace ballast
