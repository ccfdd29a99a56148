// SPDX-License-Identifier: Apache-2.0
// `ballast launch --hosts` on hosts that are kernel namespaces of this machine: each has its own network, processes,
// shared memory and temporary directory. A script in place of ssh enters them.
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <set>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "tests/fault/programs/program.h"
#include "tests/testing/job_test.h"

namespace ballast {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kOne[] = "10.78.0.2";
constexpr char kTwo[] = "10.78.0.3";

// A host: runs until it is killed. $1: its temporary directory.
constexpr char kHost[] =
    R"(mount -t tmpfs tmpfs "$1" && mount -t tmpfs tmpfs /dev/shm && ip link set lo up && echo ready
exec sleep infinity)";

// Passes bytes on until either end closes, like ssh: killed, it leaves the command on the host with a closed input.
constexpr char kShell[] = R"(#!/usr/bin/python3
import os, subprocess, sys, threading
host = sys.argv[1].split("@")[-1]
folder = os.path.dirname(os.path.abspath(sys.argv[0]))
if not os.path.exists(f"{folder}/{host}.pid"):
    print(f"ssh: connect to host {host} port 22: No route to host", file=sys.stderr)
    sys.exit(255)
pid = open(f"{folder}/{host}.pid").read()
with open(f"{folder}/{host}.shell", "w") as file:
    file.write(str(os.getpid()))
enter = ["nsenter", "-t", pid, "-n", "-p", "-i", "-m", "--", "env", f"TMPDIR={folder}/{host}"]
# Like another machine, not in the process group of the connection.
there = subprocess.Popen(enter + ["sh", "-c", sys.argv[2]], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                         start_new_session=True)

def feed():
    try:
        while data := os.read(0, 65536):
            there.stdin.write(data)
            there.stdin.flush()
        there.stdin.close()
    except OSError:
        pass

threading.Thread(target=feed, daemon=True).start()
while data := os.read(there.stdout.fileno(), 65536):
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
os._exit(there.wait())
)";

class SeveralHostsTest : public JobTest {
 protected:
  static void SetUpTestSuite() {
    setenv("PATH", absl::StrCat(std::getenv("PATH"), ":/usr/sbin:/sbin").c_str(), 1);
    directory_ = ::testing::TempDir() + "/hosts";
    std::filesystem::remove_all(directory_);
    if (!EnterNamespaces(CLONE_NEWNET)) {
      refused_ = absl::StrCat("cannot enter a network namespace: ", std::strerror(errno));
      return;
    }
    Sh("ip link set lo up && ip link add name bridge0 type bridge && ip addr add 10.78.0.1/24 dev bridge0 && "
       "ip link set dev bridge0 up");
    for (const char* address : {kOne, kTwo}) AddHost(address);
    const std::string shell = directory_ + "/rsh.py";
    std::ofstream(shell) << kShell;
    std::filesystem::permissions(shell, std::filesystem::perms::owner_all);
  }
  static void TearDownTestSuite() { hosts_.clear(); }

  void SetUp() override {
    if (!refused_.empty()) GTEST_SKIP() << refused_;
    JobTest::SetUp();
  }

  // No test leaves a process or a file on a host.
  void TearDown() override {
    if (!refused_.empty()) return;
    for (const char* address : {kOne, kTwo}) {
      EXPECT_THAT(ProcessesOn(address, ""), IsEmpty()) << address;
      EXPECT_THAT(On(address, absl::StrCat("find ", directory_, "/", address, " -mindepth 1")), IsEmpty()) << address;
    }
  }

  static void Sh(const std::string& script) {
    if (refused_.empty() && std::system(script.c_str()) != 0) refused_ = "cannot set up hosts: " + script;
  }

  static void AddHost(const std::string& address) {
    const std::string temporary = absl::StrCat(directory_, "/", address);
    std::filesystem::create_directories(temporary);
    auto host = Program::Start({"/usr/bin/env", "unshare", "--net", "--pid", "--ipc", "--mount", "--fork",
                                "--kill-child", "--mount-proc", "sh", "-c", kHost, "sh", temporary});
    if (!host.ok() || !(*host)->AwaitLine("ready", kTestTimeout).ok()) {
      refused_ = "cannot set up hosts with unshare";
      return;
    }
    const std::vector<pid_t> children = ChildrenOf((*host)->pid(), "");
    if (children.size() != 1) refused_ = "cannot find the first process of a host";
    if (!refused_.empty()) return;
    const std::string name = address.substr(address.rfind('.') + 1);
    Sh(absl::StrCat("ip link add name to", name, " type veth peer name eth0 netns ", children[0], " && ip link set to",
                    name, " master bridge0 up && nsenter -t ", children[0], " -n ip addr add ", address,
                    "/24 dev eth0 && nsenter -t ", children[0], " -n ip link set eth0 up"));
    std::ofstream(temporary + ".pid") << children[0];
    hosts_.push_back(*std::move(host));
  }

  static std::string File(const std::string& name) {
    std::ostringstream text;
    text << std::ifstream(absl::StrCat(directory_, "/", name)).rdbuf();
    return text.str();
  }

  // Runs a script on a host's files; returns its output.
  static std::string On(const std::string& address, const std::string& script) {
    ChildProcess process({"/usr/bin/env", "nsenter", "-t", File(address + ".pid"), "-m", "sh", "-c", script});
    process.Wait();
    return process.output();
  }

  // Ids of a host's processes whose command line contains `text`; without its first one.
  static std::vector<pid_t> ProcessesOn(const std::string& address, const std::string& text) {
    const std::string first = File(address + ".pid");
    std::error_code error;
    const auto space = std::filesystem::read_symlink(absl::StrCat("/proc/", first, "/ns/pid"), error);
    std::vector<pid_t> found;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      const std::string name = entry.path().filename().string();
      if (std::filesystem::read_symlink(entry.path() / "ns/pid", error) != space || error || name == first) continue;
      std::ostringstream words;
      words << std::ifstream(entry.path() / "cmdline").rdbuf();
      // A process that has ended has none.
      if (!words.str().empty() && absl::StrContains(words.str(), text)) found.push_back(std::stoi(name));
    }
    return found;
  }

  ChildProcess LaunchOn(const std::string& hosts, std::vector<std::string> flags, const std::string& run = "run") {
    flags.insert(flags.end(), {"--hosts", hosts, "--rsh", directory_ + "/rsh.py"});
    return Launch(flags, run);
  }

  static void Interrupt(ChildProcess& launch) {
    launch.Signal(SIGINT);
    EXPECT_EQ(launch.Wait().ToString(), "ended with status 130") << launch.output();
  }

  static std::string directory_;
  static std::string refused_;
  static std::vector<std::unique_ptr<Program>> hosts_;
};

std::string SeveralHostsTest::directory_;
std::string SeveralHostsTest::refused_;
std::vector<std::unique_ptr<Program>> SeveralHostsTest::hosts_;

TEST_F(SeveralHostsTest, TrainToTheSameBitsAsOneHost) {
  WriteJob();
  Train({"--servers", "2", "--workers", "3"}, "alone");
  for (const std::string hosts : {"10.78.0.2,10.78.0.3:2", "localhost:2,10.78.0.3"}) {
    const std::string run = absl::StrCat("run-", hosts.substr(0, 4));
    ChildProcess launch = LaunchOn(hosts, {"--servers", "2", "--json"}, run);
    const Summary summary = Finish(launch);
    EXPECT_EQ(summary.workers, 3);
    EXPECT_EQ(summary.run_dir, Path(run));
    const std::vector<LoadedTensor> alone = Model("alone"), together = Model(run);
    ASSERT_EQ(alone.size(), 4u);
    ASSERT_EQ(together.size(), 4u);
    for (size_t i = 0; i < alone.size(); ++i) EXPECT_EQ(alone[i].values, together[i].values) << alone[i].name;
    EXPECT_THAT(Read(run + "/logs/server-1.log"), HasSubstr("server 1 serves on 0.0.0.0:"));
    EXPECT_THAT(Read(run + "/metrics.jsonl"), HasSubstr("{\"kind\":\"test\",\"epoch\":3,"));
    EXPECT_TRUE(std::filesystem::exists(Path(run + "/report.html")));
    EXPECT_FALSE(std::filesystem::exists(Path(run + "/security")));
  }
}

// `ballast run`: the program's variables, certificates and tokens are there on each host, and its job trains.
TEST_F(SeveralHostsTest, RunAUsersProgram) {
  if (std::system("/usr/bin/python3 -c 'import numpy' 2> /dev/null") != 0) GTEST_SKIP() << "Python has no NumPy";
  Write("script.py", R"(
import os
import numpy as np, ballast
with ballast.connect(examples=400, batch_size=10, epochs=2) as ps:
    w = np.zeros(3, np.float32)
    ps.declare({"w": w}, ballast.SGD(0.5))
    ps.pull({"w": w})
    for batch in ps.leases():
        ps.push_pull({"w": np.ones(3, np.float32)}, into={"w": w}, examples=len(batch)).result(60)
        ps.log(1.0)
print("rank", os.environ["RANK"], "local", os.environ["LOCAL_RANK"], "in", os.getcwd(), *[
    int("/ballast-" in os.environ["BALLAST_" + name]) for name in ("TLS_CA", "TLS_KEY", "TOKEN_FILE")])
)");
  ChildProcess run({"/bin/sh", "-c", "cd \"$1\" && shift && exec \"$@\" > out", "sh", Path(""), Binary("cli/ballast"),
                    "run", "--run-dir", Path("run"), "--servers", "2", "--hosts", "10.78.0.2,10.78.0.3:2", "--rsh",
                    directory_ + "/rsh.py", "--json", "--", "/usr/bin/python3", "script.py"});
  const Summary summary = Finish(run);
  EXPECT_EQ(summary.workers, 3);
  EXPECT_EQ(summary.examples, 800);
  EXPECT_EQ(summary.epochs, 2);
  const std::string folder = std::filesystem::canonical(Path("")).string();
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(Read(absl::StrCat("run/logs/worker-", rank, ".log")),
              absl::StrCat("rank ", rank, " local ", rank == 2 ? 1 : 0, " in ", folder, " 1 1 1\n"));
  }
  EXPECT_THAT(Read("run/job.textproto"), HasSubstr("epochs: 2")) << "worker 0 has written it on its host";
}

TEST_F(SeveralHostsTest, CtrlCSavesAndLeavesNothingBehind) {
  WriteEndlessJob();
  ChildProcess launch = LaunchOn("10.78.0.2,10.78.0.3", {"--servers", "2", "--verbose"});
  ASSERT_TRUE(launch.AwaitOutput(kUnderWay)) << launch.output();
  EXPECT_THAT(
      On(kTwo, absl::StrCat("cd ", directory_, "/", kTwo, "/ballast-*/security && ls && stat -c %a *.key")),
      testing::AllOf(
          HasSubstr("ca.pem\nclient.key\nclient.pem\nreader.token\nserver.key\nserver.pem\ntokens\nworker.token\n"),
          HasSubstr("600\n600\n")));
  Interrupt(launch);
  EXPECT_TRUE(std::filesystem::exists(Path("run/model.safetensors"))) << "worker 0 has saved on its host";
  EXPECT_TRUE(std::filesystem::exists(Path("run/summary.json")));
}

TEST_F(SeveralHostsTest, RestartAWorkerThatWasKilled) {
  WriteJob({{"epochs: 3", "epochs: 150"}});
  ChildProcess launch = LaunchOn("localhost,10.78.0.3", {"--verbose", "--json"});
  ASSERT_TRUE(launch.AwaitOutput(kUnderWay)) << launch.output();
  const std::vector<pid_t> workers = ProcessesOn(kTwo, "ballast_worker");
  ASSERT_EQ(workers.size(), 1u);
  kill(workers[0], SIGKILL);
  EXPECT_EQ(Finish(launch).restarts, 1);
  EXPECT_THAT(launch.output(), ContainsRegex("worker 1 on 10.78.0.3 \\(process [0-9]+\\) was killed by signal 9 "
                                             "\\(SIGKILL\\); restarting it in 200ms \\(restart 1 of 3\\)"));
}

TEST_F(SeveralHostsTest, ABrokenConnectionEndsTheProcessesOnItsHostAndTheyStartAgain) {
  WriteJob({{"epochs: 3", "epochs: 150"}});
  // Worker 0, whose results come from its host, is one of them.
  ChildProcess launch =
      LaunchOn("10.78.0.3:2,localhost", {"--servers", "1", "--verbose", "--json", "--durability", "wal"});
  ASSERT_TRUE(launch.AwaitOutput(kUnderWay)) << launch.output();
  // The first line of metrics has arrived.
  for (int epoch = 2; !absl::StrContains(Read("run/metrics.jsonl"), "\"test\",\"epoch\":1,"); ++epoch) {
    ASSERT_TRUE(launch.AwaitOutput(absl::StrCat("epoch ", epoch, ": test loss"))) << launch.output();
  }
  std::vector<Grandchild> processes;
  for (pid_t process : ProcessesOn(kTwo, "ballast_")) processes.emplace_back(process);
  ASSERT_EQ(processes.size(), 3u) << "a server and two workers";
  kill(std::stoi(File("10.78.0.3.shell")), SIGKILL);
  for (const Grandchild& process : processes) EXPECT_TRUE(process.AwaitEnd()) << process.pid();
  EXPECT_EQ(Finish(launch).restarts, 3);
  EXPECT_THAT(launch.output(), HasSubstr("was lost with the connection to its host; restarting it"));
  const std::string metrics = Read("run/metrics.jsonl");
  EXPECT_THAT(metrics, HasSubstr("{\"kind\":\"test\",\"epoch\":1,")) << "of the first connection";
  EXPECT_THAT(metrics, HasSubstr("{\"kind\":\"test\",\"epoch\":150,")) << "of the second one";
}

TEST_F(SeveralHostsTest, AKilledAgentLeavesNothingBehind) {
  WriteEndlessJob();
  ChildProcess launch = LaunchOn("localhost,10.78.0.3", {"--verbose"});
  ASSERT_TRUE(launch.AwaitOutput(kUnderWay)) << launch.output();
  const std::vector<pid_t> agents = ProcessesOn(kTwo, "host-agent");
  ASSERT_EQ(agents.size(), 2u) << "the agent, and the process that outlives it";
  kill(agents[0], SIGKILL);
  ASSERT_TRUE(launch.AwaitOutput("was lost with the connection to its host; restarting it")) << launch.output();
  ASSERT_TRUE(launch.AwaitOutput("worker 1 has rejoined")) << launch.output();
  Interrupt(launch);
}

TEST_F(SeveralHostsTest, AServerReturnsWithItsLogFromItsOwnHost) {
  WriteJob({{"epochs: 3", "epochs: 150"}});
  // The host has a run directory of its own.
  std::filesystem::create_directories(Path("runs"));
  On(kTwo, absl::StrCat("mount -t tmpfs tmpfs ", Path("runs")));
  ChildProcess launch =
      LaunchOn("localhost:2,10.78.0.3:0", {"--servers", "2", "--durability", "wal", "--verbose", "--json"}, "runs/wal");
  ASSERT_TRUE(launch.AwaitOutput(kUnderWay)) << launch.output();
  const std::vector<pid_t> servers = ProcessesOn(kTwo, "ballast_server");
  ASSERT_EQ(servers.size(), 1u);
  kill(servers[0], SIGKILL);
  EXPECT_EQ(Finish(launch).pushes_lost, 0);
  EXPECT_THAT(launch.output(), HasSubstr("server 1 recovered its shard"));
  On(kTwo, absl::StrCat("umount ", Path("runs")));
}

TEST_F(SeveralHostsTest, SayWhatAHostLacks) {
  std::filesystem::create_directories(Path("data"));
  std::filesystem::create_directories(Path("runs"));
  WriteJob({{"\"train.csv\"", "\"data/train.csv\""}});
  WriteData("data/train.csv", 20);
  On(kTwo, absl::StrCat("mount -t tmpfs tmpfs ", Path("data"), "; mount -t tmpfs tmpfs ", Path("runs")));
  const struct {
    std::string hosts;
    std::vector<std::string> flags;
    int status;
    std::string want;
  } cases[] = {
      {"localhost,10.78.0.9",
       {},
       75,
       "error: host 10.78.0.9: ssh: connect to host 10.78.0.9 port 22: No route to host"},
      {"localhost,10.78.0.3", {}, 2, absl::StrCat("error: host 10.78.0.3: ", Path("data/train.csv"), ": No such file")},
      {"10.78.0.2", {"--remote-bin", "/nowhere"}, 2, "error: host 10.78.0.2: no program /nowhere/ballast"},
      {"localhost,10.78.0.3:0",
       {"--servers", "2", "--durability", "checkpoint"},
       2,
       "want --run-dir on a file system that all of them share"},
  };
  int run = 0;
  for (const auto& [hosts, flags, status, want] : cases) {
    ChildProcess launch = LaunchOn(hosts, flags, absl::StrCat("runs/", run++));
    EXPECT_EQ(launch.Wait().number, status) << launch.output();
    EXPECT_THAT(launch.output(), HasSubstr(want));
  }
  On(kTwo, absl::StrCat("umount ", Path("data"), " ", Path("runs")));
}

}  // namespace
}  // namespace ballast
