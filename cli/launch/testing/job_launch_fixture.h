// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/launch/job_launch.h"
#include "common/storage/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {

inline constexpr char kHead[] = R"(#!/bin/sh
for word; do
  [ "$before" = --address_file ] && file=$word
  [ "$before" = --rank ] && rank=$word
  before=$word
done
folder=${0%/*}
echo "${0##*/} $rank: $*"
put() { echo "$2" > "$1.new" && mv "$1.new" "$1"; }
await() { while [ ! -e $folder/$1 ]; do :; done; }
stay() { while :; do tail -f /dev/null & wait; done; }
)";

// A server that runs until SIGTERM.
inline constexpr char kGoodServer[] = R"(
trap 'echo drained; exit 0' TERM
[ -n "$file" ] && put "$file" 127.0.0.1:4242
stay
)";

inline constexpr char kWaitForTerm[] = "trap 'echo saved; exit 130' TERM; echo ready; stay\n";

// In a regular expression.
inline constexpr char kKilled[] = "was killed by signal 9 \\(SIGKILL\\)";

// A fake coordinator, polled twice a second; calls `asked` with each poll. Has one member, by default worker 1, whose
// process id it reads from a file. The job is finished once the file `trained` exists. Records the ends that are
// reported to it.
class FakeProgress : public ProgressSource {
 public:
  struct Script {
    // Number of polls that fail first.
    int failures = 0;
    // The job is finished, and worker 1 has left it.
    bool finished = false;
    v1::Role role = v1::ROLE_WORKER;
    // The job has failed through the member.
    bool failed = false;
    // The answers to SaveCheckpoint; the last one is repeated.
    std::vector<v1::SaveCheckpointResponse> saves;
    // The members are the servers, read from the *.pid files next to their addresses; they are in step.
    bool pairs = false;
  };
  FakeProgress(Script script, std::function<void()> asked, const std::string& run_dir, std::vector<std::string>* ends)
      : script_(script), asked_(std::move(asked)), run_dir_(run_dir), ends_(ends) {}
  absl::StatusOr<v1::GetProgressResponse> GetProgress(absl::Duration) override {
    if (asked_) asked_();
    if (std::filesystem::exists(run_dir_ + "/pid") && script_.failures-- > 0) return absl::UnavailableError("away");
    v1::GetProgressResponse response;
    v1::JobProgress& progress = *response.mutable_progress();
    const bool trained = std::filesystem::exists(run_dir_ + "/trained");
    progress.set_state(trained ? v1::JOB_STATE_FINISHED : v1::JOB_STATE_RUNNING);
    progress.set_epochs(5);
    progress.set_step(7);
    if (script_.pairs) {
      for (int rank : {0, 1}) {
        Add(absl::StrCat("/logs/server-", rank, ".address.pid"), v1::ROLE_SERVER, rank, response);
        Add(absl::StrCat("/logs/standby-", rank, ".address.pid"), v1::ROLE_STANDBY, rank, response);
      }
      return response;
    }
    v1::GetProgressResponse::MemberStatus* member = Add("/pid", script_.role, 1, response);
    if (member == nullptr) return response;
    member->mutable_member()->set_incarnation(1);
    member->set_state(script_.finished ? "left" : "joined");
    if (script_.failed) {
      progress.set_state(v1::JOB_STATE_FAILED);
      *progress.mutable_failure()->mutable_member() = member->member();
      progress.mutable_failure()->set_process(member->process());
    }
    if (script_.finished) progress.set_state(v1::JOB_STATE_FINISHED);
    return response;
  }
  absl::StatusOr<v1::SaveCheckpointResponse> SaveCheckpoint(v1::SaveCheckpointRequest request,
                                                            absl::Duration) override {
    if (script_.saves.empty()) return absl::PermissionDeniedError("no token");
    if (asked_) asked_();
    const v1::SaveCheckpointResponse save = script_.saves.front();
    EXPECT_TRUE(request.id() == 0 || request.id() == save.id());
    EXPECT_TRUE(request.stop()) << "the launch is about to stop the servers";
    if (script_.saves.size() > 1) script_.saves.erase(script_.saves.begin());
    return save;
  }
  absl::Status ReportEnd(const v1::Member& member, const std::string& how, absl::Duration) override {
    ends_->push_back(member.ShortDebugString() + ": " + how);
    return absl::OkStatus();
  }

 private:
  // Adds the process whose id the file has; null if there is none.
  v1::GetProgressResponse::MemberStatus* Add(const std::string& file, v1::Role role, int rank,
                                             v1::GetProgressResponse& response) const {
    std::string pid;
    if (!std::getline(std::ifstream(run_dir_ + file), pid)) return nullptr;
    v1::GetProgressResponse::MemberStatus* member = response.add_members();
    member->mutable_member()->set_role(role);
    member->mutable_member()->set_rank(rank);
    member->set_process(std::stoull(pid));
    member->set_in_step(role == v1::ROLE_STANDBY);
    return member;
  }

  Script script_;
  const std::function<void()> asked_;
  const std::string run_dir_;
  std::vector<std::string>* const ends_;
};

class JobLaunchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    run_dir_ = ::testing::TempDir() + "/" + ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(run_dir_);
    std::filesystem::create_directories(run_dir_ + "/logs");
  }

  std::string Script(const std::string& name, const std::string& text) {
    const std::string path = run_dir_ + "/" + name;
    std::ofstream(path) << kHead << text;
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return path;
  }

  // Runs the scripts as a job of two servers and two workers.
  LaunchResult Run() {
    plan_.run_dir = run_dir_;
    plan_.server_binary = Script("server", server_);
    plan_.worker_binary = Script("worker", worker_);
    ProgressDisplay display({.epochs = 3, .metrics = run_dir_ + "/metrics.jsonl"}, &shown_, Clock::Real());
    LogMerger logs([&](absl::string_view line) { log_lines_.emplace_back(line); }, false);
    auto connect = [&](const std::string& address) {
      connected_ = address;
      return std::make_unique<FakeProgress>(progress_, asked_, run_dir_, &ends_);
    };
    const absl::Time start = absl::Now();
    const LaunchResult result = JobLaunch(plan_, &logs, &display, connect).Run();
    seconds_ = absl::ToDoubleSeconds(absl::Now() - start);
    return result;
  }

  LaunchResult RunWell() {
    const LaunchResult result = Run();
    EXPECT_EQ(result.exit_status, 0) << result.error << shown_.str();
    return result;
  }

  // `process` and `how`: regular expressions of the process that failed and of its end.
  LaunchResult RunToFailure(int exit_status, const std::string& process, const std::string& how) {
    const LaunchResult result = Run();
    EXPECT_EQ(result.exit_status, exit_status);
    EXPECT_THAT(result.error, ::testing::MatchesRegex(process + " \\(process [0-9]+\\) " + how));
    return result;
  }

  // Matches text that announces it.
  static auto RestartOf(const std::string& process) {
    return ::testing::ContainsRegex(process + " \\(process [0-9]+\\) " + kKilled +
                                    "; restarting it in 200ms \\(restart 1 of 3\\)");
  }

  // Creates a file for which scripts wait.
  void Touch(const std::string& name) { std::ofstream(run_dir_ + "/" + name) << "x"; }

  // Does so once a poll of the coordinator finds it true.
  void TouchWhen(const std::string& name, std::function<bool()> condition) {
    asked_ = [=, this] {
      if (condition()) Touch(name);
    };
  }

  bool Shown(const std::string& text) { return absl::StrContains(shown_.str(), text); }

  std::string Log(const std::string& name) { return ReadFile(run_dir_ + "/logs/" + name + ".log").value_or(""); }

  bool WorkersAreReady() {
    return absl::StrContains(Log("worker-0"), "ready") && absl::StrContains(Log("worker-1"), "ready");
  }

  LaunchPlan plan_ = {.job_file = "job.textproto", .servers = 2, .workers = 2, .gpus = "2", .threads = 3};
  std::string run_dir_;
  std::string server_ = kGoodServer;
  std::string worker_ = "exit 0\n";
  FakeProgress::Script progress_;
  std::function<void()> asked_;
  std::string connected_;
  std::vector<std::string> ends_;
  std::ostringstream shown_;
  std::vector<std::string> log_lines_;
  double seconds_ = 0;
};

}  // namespace ballast
