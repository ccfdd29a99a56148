// SPDX-License-Identifier: Apache-2.0
// Errors that a user sees, with the real programs. cli/launch/launch_command_test.cc covers errors in the command
// line and in job files, and a launch that is killed.
#include <netinet/in.h>
#include <sys/socket.h>
#include <zlib.h>

#include "gmock/gmock.h"
#include "tests/testing/job_test.h"

namespace ballast {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::SizeIs;
using ::testing::StartsWith;

// --- by ballast launch ---

class LaunchFailureTest : public JobTest {
 protected:
  // Launches 2 servers and 2 workers and waits until they train; sets children_.
  ChildProcess LaunchEndless(std::vector<std::string> flags = {}) {
    WriteEndlessJob();
    flags.insert(flags.end(), {"--servers", "2", "--workers", "2", "--verbose", "--json"});
    ChildProcess launch = Launch(flags);
    EXPECT_TRUE(launch.AwaitOutput(kUnderWay)) << launch.output();
    children_ = Grandchild::Of(launch.pid());
    EXPECT_THAT(children_, SizeIs(4));
    return launch;
  }

  const Grandchild& Child(absl::string_view program, const std::string& rank) const {
    for (const Grandchild& child : children_) {
      if (child.Is(program, rank)) return child;
    }
    ADD_FAILURE() << "no " << program << " of rank " << rank;
    return children_.at(0);
  }

  void ExpectNoChildLeft() const {
    for (const Grandchild& child : children_) EXPECT_TRUE(child.AwaitEnd()) << "process " << child.pid();
  }

  // Kills a child and expects that this ends the run, whose last line names it as `name`.
  void ExpectKillIsNamed(ChildProcess& launch, absl::string_view program, const std::string& rank,
                         absl::string_view name) {
    const Grandchild& victim = Child(program, rank);
    victim.Signal(SIGKILL);
    EXPECT_EQ(launch.Wait().ToString(), "ended with status 1");
    EXPECT_THAT(launch.last_line(), StartsWith(absl::StrCat("error: ", name, " (process ", victim.pid(),
                                                            ") was killed by signal 9 (SIGKILL)")));
    ExpectNoChildLeft();
  }

  // Runs job.textproto until it fails; returns the last line of its errors.
  std::string FailWith(int status, const std::vector<std::string>& flags = {}) {
    ChildProcess launch = Launch(flags);
    EXPECT_EQ(launch.Wait().ToString(), absl::StrCat("ended with status ", status)) << launch.output();
    EXPECT_EQ(Read("out"), "");
    return launch.last_line();
  }

  std::vector<Grandchild> children_;
};

TEST_F(LaunchFailureTest, Worker0KilledTooOftenEndsTheRunAndIsNamed) {
  ChildProcess launch = LaunchEndless({"--max-restarts", "0"});
  ExpectKillIsNamed(launch, "ballast_worker", "0", "worker 0");
  EXPECT_THAT(launch.output(), HasSubstr("last lines of worker 0 (full log: "));
  EXPECT_THAT(launch.output(), HasSubstr("\n  model 4 -> dense 16"));
}

TEST_F(LaunchFailureTest, AKilledServerEndsTheRunAndIsNamed) {
  ChildProcess launch = LaunchEndless();
  ExpectKillIsNamed(launch, "ballast_server", "1", "server 1");
}

TEST_F(LaunchFailureTest, AKilledCoordinatorEndsTheRunAndIsNamed) {
  ChildProcess launch = LaunchEndless();
  ExpectKillIsNamed(launch, "ballast_server", "0", "server 0");
}

TEST_F(LaunchFailureTest, CtrlCSavesWhatIsThere) {
  ChildProcess launch = LaunchEndless();
  launch.Signal(SIGINT);
  EXPECT_EQ(launch.Wait().ToString(), "ended with status 130") << launch.output();
  ExpectNoChildLeft();
  const Summary summary = Printed();
  EXPECT_TRUE(summary.interrupted);
  EXPECT_GT(summary.steps, 0);
  // The same object, and how the launch ended.
  const std::string saved = Read("run/summary.json");
  EXPECT_EQ(Read("out"), saved.substr(0, saved.rfind('}')) +
                             ",\"error\":\"interrupted\",\"reason\":\"CANCELLED\",\"exit_code\":130}\n");
  EXPECT_THAT(Model(), SizeIs(4));
  EXPECT_THAT(Read("run/report.html"), HasSubstr("<svg"));
}

TEST_F(LaunchFailureTest, CtrlCTwiceEndsAtOnce) {
  ChildProcess launch = LaunchEndless();
  // A stopped worker cannot finish its step, so a single SIGINT would take long.
  Child("ballast_worker", "0").Signal(SIGSTOP);
  launch.Signal(SIGINT);
  ASSERT_TRUE(launch.AwaitOutput("press Ctrl-C again to stop immediately"));
  launch.Signal(SIGINT);
  EXPECT_EQ(launch.Wait().ToString(), "ended with status 130") << launch.output();
  ExpectNoChildLeft();
}

TEST_F(LaunchFailureTest, ADivergedLossEndsTheRunWithTheStepAndTheCause) {
  WriteJob({{"learning_rate: 0.2", "learning_rate: 1e30"}});
  EXPECT_THAT(
      FailWith(1, {"--workers", "2"}),
      MatchesRegex("error: worker [01] \\(process [0-9]+\\) ended with status 1: the loss is -?(nan|inf) at step "
                   "[0-9]+: training has diverged. The usual cause is too high a learning rate \\(1e\\+30 .*"));
}

TEST_F(LaunchFailureTest, NanInTheDataIsRefused) {
  WriteJob();
  Write("train.csv", "1,2,3,4,0\n1,nan,3,4,1\n");
  EXPECT_THAT(FailWith(2), AllOf(HasSubstr("train.csv:2"), HasSubstr("nan")));
}

TEST_F(LaunchFailureTest, RefusesAnImpossibleValue) {
  WriteJob({{"batch_size: 8", "batch_size: 0"}});
  EXPECT_EQ(FailWith(2),
            absl::StrCat("error: ", Path("job.textproto"), ":13:22: training.batch_size: got 0, want 1 to 1048576"));
}

TEST_F(LaunchFailureTest, RefusesShapesThatDoNotFit) {
  WriteJob({{"units: 3 }", "units: 3 inputs: 7 }"}});
  EXPECT_THAT(FailWith(2), HasSubstr(" ended with status 2: layer \"dense2\": gets 16 inputs, want 7"));
}

TEST_F(LaunchFailureTest, RefusesTestDataOfAnotherWidth) {
  WriteJob();
  Write("test.csv", "1,2,3,0\n");
  EXPECT_THAT(FailWith(2), HasSubstr("test.csv:1: has 4 columns, want 5 as in the training data"));
}

TEST_F(LaunchFailureTest, RefusesMissingData) {
  WriteJob({{"\"train.csv\"", "\"missing.csv\""}});
  EXPECT_THAT(FailWith(2), HasSubstr(absl::StrCat(Path("missing.csv"), ": No such file or directory")));
}

TEST_F(LaunchFailureTest, RefusesARowOfAnotherWidth) {
  WriteJob();
  Write("train.csv", "1,2,3,4,0\n1,2,3,1\n");
  EXPECT_THAT(FailWith(2), HasSubstr("train.csv:2"));
}

TEST_F(LaunchFailureTest, RefusesALabelThatIsNoClass) {
  WriteJob();
  Write("train.csv", "1,2,3,4,0\n1,2,3,4,2\n1,2,3,4,7\n1,2,3,4,3\n");
  EXPECT_THAT(FailWith(2),
              HasSubstr(absl::StrCat(Path("train.csv"), ":3: label is 7, want a whole number from 0 to 2")));
}

TEST_F(LaunchFailureTest, RefusesTruncatedGzipData) {
  WriteJob({{"csv { path: \"train.csv\" label_column: -1 }", "idx { images: \"images.gz\" labels: \"labels.gz\" }"}});
  // 50 images of 2 x 2.
  const std::string idx = std::string("\0\0\x08\x03\0\0\0\x32\0\0\0\x02\0\0\0\x02", 16) + std::string(200, 'x');
  gzFile file = gzopen(Path("images.gz").c_str(), "wb0");
  ASSERT_EQ(gzwrite(file, idx.data(), idx.size()), idx.size());
  gzclose(file);
  std::filesystem::resize_file(Path("images.gz"), 100);
  Write("labels.gz", "");
  EXPECT_THAT(FailWith(2), HasSubstr("images.gz: truncated: the file ends at byte 100 "));
}

// --- by hand ---

class ByHandTest : public JobTest {};

TEST_F(ByHandTest, WorkersEndByThemselvesWhenTheOnlyServerDies) {
  WriteEndlessJob();
  ChildProcess server = StartServer({});
  ChildProcess worker = StartWorker();
  ASSERT_TRUE(worker.AwaitOutput(kUnderWay)) << worker.output();
  server.Signal(SIGKILL);
  EXPECT_EQ(worker.Wait().ToString(), "ended with status 1");
  EXPECT_THAT(worker.last_line(), StartsWith("error: "));
  EXPECT_THAT(worker.last_line(), HasSubstr(address_));
}

TEST_F(ByHandTest, WorkersEndByThemselvesWhenOneOfTwoServersDies) {
  WriteEndlessJob();
  ChildProcess server = StartServer({"--servers", "2"});
  const std::string coordinator = address_;
  ChildProcess victim = StartServer({"--rank", "1", "--coordinator", coordinator});
  const std::string address = std::exchange(address_, coordinator);
  ChildProcess worker = StartWorker();
  ASSERT_TRUE(worker.AwaitOutput(kUnderWay)) << worker.output();
  victim.Signal(SIGKILL);
  EXPECT_EQ(worker.Wait().ToString(), "ended with status 1");
  EXPECT_THAT(worker.last_line(), StartsWith("error: "));
  EXPECT_THAT(worker.last_line(), AnyOf(HasSubstr("server 1 ("), HasSubstr("shard 1 at " + address)));
}

TEST_F(ByHandTest, OneWorkerTooManyIsRefusedAndTheJobGoesOn) {
  WriteEndlessJob();
  ChildProcess server = StartServer({"--workers", "2"});
  ChildProcess first = StartWorker({"--rank", "0"});
  ChildProcess second = StartWorker({"--rank", "1"});
  ASSERT_TRUE(first.AwaitOutput(kUnderWay)) << first.output();
  ChildProcess third = StartWorker();
  EXPECT_EQ(third.Wait().ToString(), "ended with status 1");
  EXPECT_THAT(third.last_line(), HasSubstr("all 2 worker ranks of the job are taken"));
  ChildProcess usurper = StartWorker({"--rank", "1"});
  EXPECT_EQ(usurper.Wait().ToString(), "ended with status 1");
  EXPECT_THAT(usurper.last_line(), HasSubstr(absl::StrCat("process ", second.pid(), ") has that rank and is alive")));
  ASSERT_TRUE(first.AwaitOutput("epoch 2: test loss")) << first.output();
  first.Signal(SIGINT);
  EXPECT_EQ(first.Wait().ToString(), "ended with status 130") << first.output();
}

TEST_F(ByHandTest, AnotherJobFileIsRefused) {
  WriteEndlessJob();
  ChildProcess server = StartServer({"--workers", "2"});
  ChildProcess first = StartWorker();
  ASSERT_TRUE(first.AwaitOutput("model ")) << first.output();
  // Joined once the server knows its job.
  ChildProcess second = StartWorker();
  ASSERT_TRUE(first.AwaitOutput(kUnderWay)) << first.output();
  Write("other.textproto", absl::StrReplaceAll(Read("job.textproto"), {{"epochs: 1000000", "epochs: 3"}}));
  ChildProcess third = StartWorker({"--job", Path("other.textproto")});
  EXPECT_EQ(third.Wait().ToString(), "ended with status 1");
  EXPECT_THAT(third.last_line(), HasSubstr("has a different job file: modified: training.epochs: 1000000 -> 3"));
}

TEST_F(ByHandTest, APortInUseIsNamed) {
  ChildProcess first = StartServer({});
  ChildProcess second({Binary("server/ballast_server"), "--listen", address_});
  EXPECT_EQ(second.Wait().ToString(), "ended with status 1");
  EXPECT_THAT(second.last_line(),
              StartsWith(absl::StrCat("error: cannot listen on ", address_, ": the port is in use")));
}

TEST_F(ByHandTest, ABudgetOutOfRangeIsNamed) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"--memory_limit_gib", "nan"}, "error: --memory_limit_gib: got nan, want 0 to 1048576"},
      {{"--max_streams", "0"}, "error: --max_streams: got 0, want 1 to 1024"},
      {{"--max_connections", "2000000000"}, "error: connections: got 2000000000, want at most "},
      {{"--bytes_in_flight_mib", "7"}, "error: --bytes_in_flight_mib: got 7, want 8 to 1048576"}};
  for (const auto& [flags, said] : cases) {
    std::vector<std::string> words = {Binary("server/ballast_server"), "--listen", "127.0.0.1:0"};
    words.insert(words.end(), flags.begin(), flags.end());
    ChildProcess server(words);
    EXPECT_NE(server.Wait().ToString(), "ended with status 0");
    EXPECT_THAT(server.last_line(), StartsWith(said));
  }
}

// A loopback TCP port that accepts connections and sends nothing, or that is closed.
class MutePort {
 public:
  explicit MutePort(bool listens) : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(socket_, reinterpret_cast<sockaddr*>(&address), size), 0);
    if (listens) {
      EXPECT_EQ(listen(socket_, 16), 0);
    }
    EXPECT_EQ(getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    address_ = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
  }
  ~MutePort() { close(socket_); }

  const std::string& address() const { return address_; }

 private:
  const int socket_;
  std::string address_;
};

TEST_F(ByHandTest, AServerThatIsNotThereIsNamedAndHowLongItWasTried) {
  WriteJob();
  for (bool listens : {false, true}) {
    const MutePort port(listens);
    address_ = port.address();
    ChildProcess worker = StartWorker({"--gather_timeout", "2"});
    EXPECT_EQ(worker.Wait().ToString(), "ended with status 75");
    EXPECT_THAT(worker.last_line(),
                MatchesRegex(absl::StrCat(
                    "error: the job has not gathered within [12]s, server 0 does not answer: ", "coordinator at ",
                    port.address(), ": connect: gave up after [0-9.]+m?s and [0-9]+ attempt.*")));
  }
}

TEST_F(ByHandTest, AWorkerThatWaitedInVainNamesTheOthersAndMayComeBack) {
  WriteJob();
  ChildProcess server = StartServer({"--workers", "2"});
  ChildProcess alone = StartWorker({"--rank", "0", "--gather_timeout", "2"});
  EXPECT_EQ(alone.Wait().ToString(), "ended with status 75");
  EXPECT_THAT(alone.last_line(), StartsWith("error: the job has not gathered within "));
  EXPECT_THAT(alone.last_line(), HasSubstr("worker 1 to join"));
  ChildProcess again = StartWorker({"--rank", "0"});
  ChildProcess other = StartWorker({"--rank", "1"});
  EXPECT_EQ(again.Wait().ToString(), "ended with status 0") << again.output();
  EXPECT_EQ(other.Wait().ToString(), "ended with status 0") << other.output();
}

TEST_F(ByHandTest, AWorkerThatLosesItsServerBeforeAllHaveJoinedMayComeBack) {
  WriteJob();
  ChildProcess server = StartServer({"--workers", "2"});
  ChildProcess worker = StartWorker({"--gather_timeout", "30"});
  // Printed once it has joined.
  ASSERT_TRUE(worker.AwaitOutput("memory ")) << worker.output();
  server.Signal(SIGKILL);
  EXPECT_EQ(worker.Wait().ToString(), "ended with status 75");
  EXPECT_THAT(worker.last_line(), HasSubstr(", server 0 was lost: coordinator at "));
}

TEST_F(ByHandTest, AWorkerNamesTheServerThatIsMissing) {
  WriteJob();
  ChildProcess server = StartServer({"--servers", "2"});
  ChildProcess worker = StartWorker({"--gather_timeout", "2"});
  EXPECT_EQ(worker.Wait().ToString(), "ended with status 75");
  EXPECT_THAT(worker.last_line(), HasSubstr("server 1 has not joined"));
}

TEST_F(ByHandTest, AServerThatWaitedInVainNamesTheOthers) {
  ChildProcess server = StartServer({"--workers", "2", "--gather_timeout", "1"});
  EXPECT_EQ(server.Wait().ToString(), "ended with status 75");
  EXPECT_EQ(server.last_line(), "error: the job has not gathered within 1s: waiting for worker 0, worker 1 to join");
  const MutePort port(/*listens=*/true);
  ChildProcess second({Binary("server/ballast_server"), "--listen", "127.0.0.1:0", "--rank", "1", "--coordinator",
                       port.address(), "--gather_timeout", "1"});
  EXPECT_EQ(second.Wait().ToString(), "ended with status 75");
  EXPECT_THAT(second.last_line(),
              StartsWith("error: the job has not gathered within 1s, server 0 does not answer: coordinator at "));
}

TEST_F(ByHandTest, AServerThatIsToldToEndSaysToAnOrchestratorIfItsJobWasDone) {
  WriteJob();
  for (const char* run_by : {"", "orchestrator"}) {
    ChildProcess early = StartServer({"--run_by", run_by});
    early.Signal(SIGTERM);
    EXPECT_EQ(early.Wait().ToString(), *run_by == '\0' ? "ended with status 0" : "ended with status 143");
    ChildProcess late = StartServer({"--run_by", run_by});
    ChildProcess worker = StartWorker({"--run_dir", Path(absl::StrCat("run", run_by))});
    ASSERT_EQ(worker.Wait().ToString(), "ended with status 0") << worker.output();
    late.Signal(SIGTERM);
    EXPECT_EQ(late.Wait().ToString(), "ended with status 0");
  }
}

TEST_F(ByHandTest, AServerEndsAtOnceThoughAWorkerWaitsForData) {
  WriteJob();
  ChildProcess server = StartServer({"--workers", "2"});
  ChildProcess worker = StartWorker({"--gather_timeout", "30"});
  ASSERT_TRUE(worker.AwaitOutput("memory ")) << worker.output();
  const absl::Time told = absl::Now();
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait().ToString(), "ended with status 0");
  EXPECT_LT(absl::Now() - told, absl::Seconds(3)) << "calls under way have 5 s";
}

TEST_F(ByHandTest, AJobThatIsLostWithAShardMayBeginAgainUnderAnOrchestrator) {
  WriteEndlessJob();
  const std::vector<std::string> flags = {"--run_by", "orchestrator",     "--resume",
                                          "auto",     "--checkpoint_dir", Path("checkpoints")};
  std::vector<std::string> first = flags, second = flags;
  first.insert(first.end(), {"--servers", "2"});
  ChildProcess server = StartServer(first);
  const std::string coordinator = address_;
  second.insert(second.end(), {"--rank", "1", "--coordinator", coordinator});
  ChildProcess victim = StartServer(second);
  address_ = coordinator;
  ChildProcess worker = StartWorker({"--run_by", "orchestrator"});
  ASSERT_TRUE(worker.AwaitOutput(kUnderWay)) << worker.output();
  // Its connections stay, so that the loss of the member is what the worker learns.
  victim.Signal(SIGSTOP);
  EXPECT_EQ(worker.Wait().ToString(), "ended with status 69") << worker.output();
  EXPECT_THAT(worker.last_line(), HasSubstr("the job has failed: server 1 ("));
  EXPECT_EQ(server.Wait().ToString(), "ended with status 69") << server.output();
  EXPECT_THAT(server.last_line(), HasSubstr("its shard is lost"));
  victim.Signal(SIGKILL);
  EXPECT_EQ(StartWorker({"--run_by", "nobody"}).Wait().ToString(), "ended with status 2");
}

TEST_F(ByHandTest, AServerWithoutItsCoordinatorSaysWhatItLacks) {
  ChildProcess server({Binary("server/ballast_server"), "--listen", "127.0.0.1:0", "--rank", "1"});
  EXPECT_EQ(server.Wait().ToString(), "ended with status 2");
  EXPECT_EQ(server.last_line(), "error: server 1 needs --coordinator, the address of server 0");
}

}  // namespace
}  // namespace ballast
