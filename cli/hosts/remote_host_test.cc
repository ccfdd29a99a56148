// SPDX-License-Identifier: Apache-2.0
// Runs the agent of the program ballast through scripts in place of ssh, the server and the worker.
#include "cli/hosts/remote_host.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "cli/hosts/fleet.h"
#include "common/storage/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Runs the command here, in a process group of its own like a host that outlives its connection.
constexpr char kShell[] = R"(#!/bin/bash
echo "welcome to $1"
echo $$ > $DIRECTORY/shell.new && mv $DIRECTORY/shell.new $DIRECTORY/shell
exec 3<&0
mkfifo $DIRECTORY/in.$$
cat <&3 > $DIRECTORY/in.$$ &
setsid --wait /bin/sh -c "$2" < $DIRECTORY/in.$$ | cat
exit ${PIPESTATUS[0]}
)";

class RemoteHostTest : public ::testing::Test, protected ProcessListener {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "/" + ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(folder_);
    for (const char* name : {"/run/logs", "/run/security", "/tmp"}) std::filesystem::create_directories(folder_ + name);
    // A shell that has ended leaves a closed pipe.
    signal(SIGPIPE, SIG_IGN);
    setenv("DIRECTORY", folder_.c_str(), 1);
    setenv("TMPDIR", (folder_ + "/tmp").c_str(), 1);
    setenv("BALLAST_SERVER_BINARY", "/bin/sh", 1);
    setenv("BALLAST_WORKER_BINARY", "/bin/sh", 1);
    Write("run/job.textproto", "name: \"x\"\n");
    Write("run/security/server.key", "secret");
    options_.host = {.login = "me@b", .address = "b"};
    options_.shell.words = {Script("shell", kShell)};
    options_.shell.own_path = std::filesystem::absolute("cli/ballast").string();
    options_.run_dir = folder_ + "/run";
    options_.setup.set_servers(true);
    options_.files = {"job.textproto", "security/server.key"};
  }

  void Write(const std::string& name, const std::string& text) { std::ofstream(folder_ + "/" + name) << text; }
  std::string Read(const std::string& name) { return ReadFile(folder_ + "/" + name).value_or(""); }
  std::string Script(const std::string& name, const std::string& text) {
    const std::string path = folder_ + "/" + name + ".sh";
    std::ofstream(path) << text;
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return path;
  }

  absl::Status Connect() {
    fleet_ = Fleet::Create(this, {options_}).value();
    return fleet_->Connect([] { return false; });
  }
  int Shell(const std::string& script) {
    return fleet_->StartOwn(0, true, "", {"-c", script, options_.run_dir}).value();
  }

  // Polls until `done` or for 20 seconds.
  void PollUntil(const std::function<bool()>& done) {
    const absl::Time deadline = absl::Now() + absl::Seconds(20);
    while (!done() && absl::Now() < deadline) fleet_->Poll(absl::Milliseconds(100));
    ASSERT_TRUE(done());
  }
  void AwaitEnd(int process) {
    PollUntil([&] { return ends_.count(process) > 0; });
  }

  void OnOutput(int process, absl::string_view bytes) override { output_[process].append(bytes.data(), bytes.size()); }
  void OnEnd(int process, const ExitStatus& status) override { ends_[process] = status.ToString(); }
  void OnSignal(int) override {}

  std::string folder_;
  RemoteHost::Options options_;
  std::map<int, std::string> output_;
  std::map<int, std::string> ends_;
  std::unique_ptr<Fleet> fleet_;
};

TEST_F(RemoteHostTest, HearsOutputAndEndOfEachProcess) {
  ASSERT_EQ(Connect(), absl::OkStatus());
  ASSERT_EQ(Shell("echo a; exit 4"), 0);
  ASSERT_EQ(Shell("echo $$; kill -KILL $$"), 1);
  AwaitEnd(0);
  AwaitEnd(1);
  EXPECT_EQ(output_[0], "a\n");
  EXPECT_EQ(ends_[0], "ended with status 4");
  EXPECT_EQ(output_[1], absl::StrCat(fleet_->pid(1), "\n"));
  EXPECT_EQ(ends_[1], "was killed by signal 9 (SIGKILL)");
}

TEST_F(RemoteHostTest, SendsSignals) {
  ASSERT_EQ(Connect(), absl::OkStatus());
  Shell("trap 'echo saved; exit 130' TERM; echo ready; while :; do tail -f /dev/null & wait; done");
  PollUntil([&] { return output_[0] == "ready\n"; });
  fleet_->Signal(0, SIGTERM);
  AwaitEnd(0);
  EXPECT_EQ(output_[0], "ready\nsaved\n");
  EXPECT_EQ(ends_[0], "ended with status 130");
}

TEST_F(RemoteHostTest, BringsFilesBackBeforeTheEnd) {
  ASSERT_EQ(Connect(), absl::OkStatus());
  // $0 is the host's copy of the run directory.
  Shell("cp $0/job.textproto $0/summary.json; echo 127.0.0.1:1 > $0/logs/server-0.address");
  AwaitEnd(0);
  EXPECT_EQ(Read("run/summary.json"), "name: \"x\"\n");
  EXPECT_EQ(Read("run/logs/server-0.address"), "127.0.0.1:1\n");
}

TEST_F(RemoteHostTest, GivesKeysToThisUserAloneAndLeavesNothingBehind) {
  ASSERT_EQ(Connect(), absl::OkStatus());
  Shell("stat -c %a $0 $0/security/server.key; cat $0/security/server.key; echo; exec tail -f /dev/null");
  PollUntil([&] { return absl::EndsWith(output_[0], "secret\n"); });
  EXPECT_THAT(output_[0], StartsWith("700\n600\n"));
  EXPECT_THAT(fleet_->Close(absl::Seconds(10)), ElementsAre());
  EXPECT_TRUE(std::filesystem::is_empty(folder_ + "/tmp"));
  EXPECT_NE(kill(static_cast<pid_t>(fleet_->pid(0)), 0), 0);
}

TEST_F(RemoteHostTest, ReplacesKeysThatWereRenewed) {
  ASSERT_EQ(Connect(), absl::OkStatus());
  Write("run/security/new.key", "renewed");
  std::filesystem::rename(folder_ + "/run/security/new.key", folder_ + "/run/security/server.key");
  Shell("until grep -q renewed $0/security/server.key; do :; done");
  AwaitEnd(0);
  EXPECT_EQ(ends_[0], "ended with status 0");
}

TEST_F(RemoteHostTest, ABrokenConnectionEndsTheProcessesThereAndTheNextStartConnectsAgain) {
  ASSERT_EQ(Connect(), absl::OkStatus());
  Shell("trap '' TERM HUP; echo ready; exec tail -f /dev/null");
  PollUntil([&] { return output_[0] == "ready\n"; });
  const int process = static_cast<int>(syscall(SYS_pidfd_open, fleet_->pid(0), 0));
  ASSERT_GE(process, 0);
  kill(-std::stoi(Read("shell")), SIGKILL);
  AwaitEnd(0);
  EXPECT_EQ(ends_[0], "was lost with the connection to its host");
  EXPECT_THAT(output_[0], HasSubstr("error: host b: "));
  pollfd waiting = {process, POLLIN, 0};
  EXPECT_EQ(poll(&waiting, 1, 10000), 1) << "still runs";
  close(process);
  Write("run/metrics.jsonl", "one\n");
  Shell("echo again");
  AwaitEnd(1);
  EXPECT_EQ(output_[1], "again\n");
  EXPECT_THAT(fleet_->Close(absl::Seconds(10)), ElementsAre());
  EXPECT_TRUE(std::filesystem::is_empty(folder_ + "/tmp"));
}

TEST_F(RemoteHostTest, TellsWhetherTheHostSharesTheRunDirectory) {
  options_.setup.set_probe(options_.run_dir + "/job.textproto");
  options_.setup.set_probe_content("name: \"x\"\n");
  ASSERT_EQ(Connect(), absl::OkStatus());
  EXPECT_TRUE(fleet_->shares_run_dir());
  options_.setup.set_probe_content("name: \"y\"\n");
  ASSERT_EQ(Connect(), absl::OkStatus());
  EXPECT_FALSE(fleet_->shares_run_dir());
}

TEST_F(RemoteHostTest, SaysWhyAHostIsNotFit) {
  const std::string ssh = "#!/bin/sh\necho '";
  const struct {
    std::string shell;
    std::string remote_bin;
    std::string input;
    std::string worker;
    absl::StatusCode code;
    std::string want;
  } cases[] = {
      {kShell, folder_, "", "/bin/sh", absl::StatusCode::kInvalidArgument,
       "host b: no program " + folder_ + "/ballast"},
      {kShell, "", folder_ + "/train.csv", "/bin/sh", absl::StatusCode::kInvalidArgument,
       "host b: " + folder_ + "/train.csv: No such file or directory; want every file that the job reads"},
      {kShell, "", "", "/no/worker", absl::StatusCode::kInvalidArgument, "host b: environment variable "},
      {"#!/bin/sh\necho 'ballast host-agent: ballast 0.0.9 (wire protocol 1)'; cat", "", "", "/bin/sh",
       absl::StatusCode::kInvalidArgument, "host b: got ballast 0.0.9 (wire protocol 1), want ballast "},
      {"#!/bin/sh\necho 'error: unknown command \"host-agent\"; see ballast help' >&2; exit 2", "", "", "/bin/sh",
       absl::StatusCode::kInvalidArgument, "another version of Ballast"},
      {ssh + "ssh: connect to host b port 22: No route to host' >&2; exit 255", "", "", "/bin/sh",
       absl::StatusCode::kUnavailable, "host b: ssh: connect to host b port 22: No route to host"},
      {ssh + "Host key verification failed.' >&2; exit 255", "", "", "/bin/sh", absl::StatusCode::kInvalidArgument,
       "ssh.sh me@b true` once, compare the fingerprint, and accept it"},
      {ssh + "me@b: Permission denied (publickey).' >&2; exit 255", "", "", "/bin/sh",
       absl::StatusCode::kInvalidArgument, "run `ssh-copy-id me@b`"},
      {"#!/bin/sh\nyes", "", "", "/bin/sh", absl::StatusCode::kInvalidArgument,
       "ssh.sh printed more than 1 MiB, and no \"ballast host-agent: \" in it"},
      {"#!/bin/sh\necho 'ballast host-agent: '\"$(cli/ballast --version)\"; yes", "", "", "/bin/sh",
       absl::StatusCode::kUnavailable, "host b: sent a message that is not one of the agent's"},
      {"#!/bin/sh\nexit 255", "", "", "/bin/sh", absl::StatusCode::kUnavailable, "ended without an error message"},
  };
  for (const auto& bad : cases) {
    options_.shell.words = {Script("ssh", bad.shell)};
    options_.shell.remote_bin = bad.remote_bin;
    options_.setup.clear_inputs();
    if (!bad.input.empty()) options_.setup.add_inputs(bad.input);
    options_.setup.set_workers(true);
    setenv("BALLAST_WORKER_BINARY", bad.worker.c_str(), 1);
    const absl::Status status = Connect();
    EXPECT_EQ(status.code(), bad.code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad.want));
  }
}

}  // namespace
}  // namespace ballast
