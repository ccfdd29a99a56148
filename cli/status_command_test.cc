// SPDX-License-Identifier: Apache-2.0
#include <google/protobuf/text_format.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "ballast/v1/coordinator_service.grpc.pb.h"
#include "ballast/v1/parameter_service.grpc.pb.h"
#include "cli/command/command.h"
#include "common/run/launch_record.h"
#include "common/run/summary.h"
#include "common/storage/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace ballast {
namespace {

using ::testing::AnyOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::StartsWith;

void Fill(const char* text, google::protobuf::Message* response) {
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, response));
}

class FakeShard : public v1::ParameterService::Service {
 public:
  grpc::Status refusal;

 private:
  grpc::Status GetStatus(grpc::ServerContext*, const v1::GetStatusRequest* request,
                         v1::GetStatusResponse* response) override {
    if (!refusal.ok()) return refusal;
    if (!request->job().empty() && request->job() != "fashion_mnist") {
      return {grpc::StatusCode::FAILED_PRECONDITION, "this server holds job \"fashion_mnist\""};
    }
    Fill(
        "shard: 1 job: 'fashion_mnist' policy: 'sync' workers: 2 tensors: 6 slices: 7 state_bytes: 3145728 pushes: "
        "12345 "
        "duplicates: 1 version: '0.1.0' max_staleness: 3 staleness { buckets: [2, 2] count: 4 sum: 2 } "
        "wait_microseconds { buckets: 3 count: 4 sum: 2500 max: 2500 } push_bytes: 3145728 pull_bytes: 12582912 "
        "bytes_in_flight_limit: 268435456 "
        "tables { id: 9 name: 'users' rows: 1234567 bytes: 2097152 clock: 40 waiting: 1200 not_admitted: 3 "
        "evicted { expired: 1 over_budget: 2000 small_norm: 3 returned: 4 } }",
        response);
    return grpc::Status::OK;
  }
};

class FakeCoordinator : public v1::CoordinatorService::Service {
  grpc::Status GetProgress(grpc::ServerContext*, const v1::GetProgressRequest*,
                           v1::GetProgressResponse* response) override {
    if (no_workers) {
      Fill(
          "progress { job: 'fashion_mnist' state: JOB_STATE_GATHERING reason: 'waiting for worker 0 to join' } "
          "servers: 1 workers: 1 members { member { role: ROLE_SERVER } state: 'joined' }",
          response);
      return grpc::Status::OK;
    }
    Fill(
        "progress { job: 'fashion_mnist' state: JOB_STATE_FAILED reason: 'worker 1: loss is NaN' epochs: 3 "
        "mode: 'bounded' learning_rate: 0.125 wait_share: 0.25 max_staleness: 3 step: 220 examples: 28160 "
        "total_examples: 60000 train_loss: 0.5983 samples_per_second: 15248 seconds: 2 line { examples: 1280 } "
        "last_evaluation { epoch: 1 loss: 0.25 auc: 0.75 bayes_auc: 0.8125 } } servers: 2 workers: 2 "
        "members { member { role: ROLE_WORKER rank: 1 } state: 'failed' description: 'host, process 77' } "
        "members { member { role: ROLE_STANDBY } state: 'joined' in_step: true } "
        "members { member { role: ROLE_STANDBY rank: 1 } state: 'joined' standby { stage: STAGE_CATCHING_UP "
        "bytes_total: 2147483648 bytes_done: 536870912 bytes_per_second: 19922944 lag_bytes: 3145728 } }",
        response);
    return grpc::Status::OK;
  }

 public:
  // Clients use the servers without joining.
  bool no_workers = false;
};

class StatusCommandTest : public ::testing::Test {
 protected:
  std::string Serve(bool coordinator) {
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&shard_);
    if (coordinator) builder.RegisterService(&coordinator_);
    server_ = builder.BuildAndStart();
    return absl::StrCat("127.0.0.1:", port);
  }

  // Writes a run whose launch lasts as long as the record.
  LaunchRecord StartRun(const std::string& name, int64_t start_second) {
    std::filesystem::create_directories(name + "/logs");
    return std::move(LaunchRecord::Create(name, absl::FromUnixSeconds(start_second))).value();
  }

  void EnterFolder() {
    const std::string folder =
        absl::StrCat(::testing::TempDir(), "/", ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(folder);
    std::filesystem::create_directories(folder);
    std::filesystem::current_path(folder);
  }

  static void Write(const std::string& path, const std::string& text) {
    EXPECT_TRUE(WriteFileAtomically(path, {text}).ok()) << path;
  }

  int Run(std::vector<std::string> args) { return StatusCommand(args, out_, err_); }

  FakeShard shard_;
  FakeCoordinator coordinator_;
  std::unique_ptr<grpc::Server> server_;
  std::ostringstream out_;
  std::ostringstream err_;
};

TEST_F(StatusCommandTest, ShowsJobMembersAndShard) {
  EXPECT_EQ(Run({Serve(true)}), 0) << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("job fashion_mnist: failed: worker 1: loss is NaN\n"));
  EXPECT_THAT(out_.str(), HasSubstr("  worker 1   failed "));
  EXPECT_THAT(out_.str(), HasSubstr("  standby 0  in step "));
  EXPECT_THAT(out_.str(), HasSubstr("catching up: 512.0 MiB of 2.0 GiB sent, 19.0 MiB/s; 3.0 MiB behind\n"));
  EXPECT_THAT(out_.str(), HasSubstr("host, process 77\n"));
  EXPECT_THAT(out_.str(),
              HasSubstr("  holds     6 tensors in 7 slices, 3.0 MiB\n"
                        "  table     users: 1,234,567 rows, 2.0 MiB, 40 steps\n"
                        "            1,200 ids wait for admission, 3 gradients not used\n"
                        "            evicted: 1 expired, 2,000 over budget, 3 of small norm; 4 returned\n"));
  EXPECT_THAT(out_.str(), HasSubstr("  pushes    12,345 (1 duplicates)\n"));
}

TEST_F(StatusCommandTest, AsksForTheJobThatIsNamed) {
  const std::string address = Serve(true);
  EXPECT_EQ(Run({address, "--job", "fashion_mnist"}), 0) << err_.str();
  EXPECT_EQ(Run({address, "--job", "another"}), 1);
  EXPECT_THAT(err_.str(), HasSubstr("this server holds job \"fashion_mnist\""));
}

TEST_F(StatusCommandTest, ShowsWaitsStalenessAndBytes) {
  EXPECT_EQ(Run({Serve(true)}), 0) << err_.str();
  EXPECT_THAT(out_.str(),
              HasSubstr("  epoch 1/3  28,160 of 60,000 examples  0:02  step 220 of the furthest worker\n"
                        "  last 1,280 examples: loss 0.5983  15,248 samples/s  workers waited 25% of their time\n"
                        "  bounded  learning rate 0.125  maximum staleness 3 updates\n"
                        "  after epoch 1: test loss 0.25, AUC 0.7500 (Bayes 0.8125)\n"));
  EXPECT_THAT(out_.str(), HasSubstr("0 waiting now; 25% waited, for 2.5ms on average and 2.5ms at most\n"));
  EXPECT_THAT(out_.str(), HasSubstr("0 gradients dropped, staleness mean 0.5, maximum 3\n"));
  EXPECT_THAT(out_.str(),
              HasSubstr("  bytes     3.0 MiB of gradients, 12.0 MiB of values; in flight 0 B of 256.0 MiB, 0 calls"));
}

TEST_F(StatusCommandTest, ShowsAShardThatDoesNotCoordinate) {
  EXPECT_EQ(Run({Serve(false)}), 0) << err_.str();
  EXPECT_THAT(out_.str(), StartsWith("shard 1 at 127.0.0.1:"));
}

TEST_F(StatusCommandTest, ServersUsedWithoutWorkersDoNotGather) {
  coordinator_.no_workers = true;
  const std::string address = Serve(true);
  EXPECT_EQ(Run({address}), 0) << err_.str();
  EXPECT_THAT(out_.str(), StartsWith("job fashion_mnist: serving clients that have not joined as workers\n"));
  out_.str("");
  EXPECT_EQ(Run({address, "--json"}), 0) << err_.str();
  EXPECT_EQ(nlohmann::json::parse(out_.str())["job"]["state"], "serving");
}

TEST_F(StatusCommandTest, PrintsOneJsonObject) {
  EXPECT_EQ(Run({Serve(true), "--json"}), 0);
  const auto json = nlohmann::json::parse(out_.str());
  EXPECT_EQ(json["shard"]["pushes"], 12345);
  ASSERT_EQ(json["shard"]["tables"].size(), 1);
  EXPECT_EQ(json["shard"]["tables"][0]["id"], 9);
  EXPECT_EQ(json["shard"]["tables"][0]["name"], "users");
  EXPECT_EQ(json["shard"]["tables"][0]["rows"], 1234567);
  EXPECT_EQ(json["shard"]["tables"][0]["bytes"], 2 << 20);
  EXPECT_EQ(json["shard"]["tables"][0]["clock"], 40);
  EXPECT_EQ(json["shard"]["tables"][0]["waiting"], 1200);
  EXPECT_EQ(json["shard"]["tables"][0]["evicted"]["over_budget"], 2000);
  EXPECT_EQ(json["shard"]["staleness"]["mean"], 0.5);
  EXPECT_EQ(json["shard"]["wait_microseconds"]["max"], 2500);
  EXPECT_EQ(json["shard"]["push_bytes"], 3 << 20);
  EXPECT_EQ(json["job"]["wait_share"], 0.25);
  EXPECT_EQ(json["job"]["test_auc"], 0.75);
  EXPECT_EQ(json["job"]["bayes_auc"], 0.8125);
  EXPECT_TRUE(json["job"]["test_accuracy"].is_null());
  EXPECT_EQ(json["job"]["epoch"], 1) << "as in the text";
  EXPECT_EQ(json["job"]["state"], "failed");
  EXPECT_EQ(json["job"]["members"][0]["rank"], 1);
  EXPECT_EQ(json["job"]["members"][1]["role"], "standby");
  EXPECT_EQ(json["job"]["members"][1]["in_step"], true);
  EXPECT_FALSE(json["job"]["members"][1].contains("standby"));
  EXPECT_EQ(json["job"]["members"][2]["standby"]["bytes_done"], 512 << 20);
  EXPECT_EQ(json["job"]["members"][2]["standby"]["lag_bytes"], 3 << 20);
}

TEST_F(StatusCommandTest, NamesAServerThatIsNotThere) {
  const std::string address = Serve(true);
  server_->Shutdown();
  server_.reset();
  EXPECT_EQ(Run({address}), 1);
  EXPECT_THAT(err_.str(), HasSubstr("error: cannot reach a server at " + address + " (tried for "));
  EXPECT_EQ(out_.str(), "");
}

TEST_F(StatusCommandTest, GivesUpOnAServerThatDoesNotAnswer) {
  // The kernel accepts connections, but no program responds on them.
  const int mute = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(mute, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(mute, 8), 0);
  ASSERT_EQ(getsockname(mute, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const std::string name = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
  EXPECT_EQ(Run({name}), 1);
  // The command's timeout and the connection attempt end at the same time, so either error may come.
  EXPECT_THAT(err_.str(), AnyOf(ContainsRegex("timed out after 5.* waiting for a response from the server at " + name),
                                HasSubstr("cannot reach a server at " + name + " (tried for ")));
  close(mute);
}

TEST_F(StatusCommandTest, RefusesWhatIsNoAddress) {
  for (const char* address :
       {"", "localhost", ":7700", "localhost:", "localhost:0", "localhost:65536", "localhost:http"}) {
    err_.str("");
    EXPECT_EQ(Run({address}), 2);
    EXPECT_EQ(err_.str(),
              absl::StrCat("error: status: got \"", address, "\", want a run directory or an address, host:port\n"));
  }
  EXPECT_EQ(Run({"localhost:1", "localhost:2"}), 2);
}

TEST_F(StatusCommandTest, FindsTheServerOfARun) {
  EnterFolder();
  const LaunchRecord launch = StartRun("mine", 1000);
  EXPECT_EQ(Run({"mine"}), 75);
  EXPECT_THAT(err_.str(), HasSubstr("run mine is starting: its server 0 has not written its address yet"));
  Write("mine/logs/server-0.control", Serve(true) + "\n");
  EXPECT_EQ(Run({"mine"}), 0) << err_.str();
  EXPECT_THAT(out_.str(), StartsWith("run mine\njob fashion_mnist: failed"));
}

TEST_F(StatusCommandTest, TakesTheNewestRunWithoutAWord) {
  EnterFolder();
  EXPECT_EQ(Run({}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("there is no run under runs/"));
  { const LaunchRecord old = StartRun("runs/old", 1000); }
  const LaunchRecord newest = StartRun("runs/newest", 2000);
  Write("runs/newest/logs/server-0.control", Serve(true) + "\n");
  EXPECT_EQ(Run({"--json"}), 0) << err_.str();
  const auto json = nlohmann::json::parse(out_.str());
  EXPECT_EQ(json["run"]["directory"], "runs/newest");
  EXPECT_EQ(json["run"]["state"], "running");
  EXPECT_EQ(json["shard"]["pushes"], 12345);
}

TEST_F(StatusCommandTest, PrintsTheResultOfARunThatHasEnded) {
  EnterFolder();
  {
    LaunchRecord launch = StartRun("runs/ended", 2000);
    ASSERT_TRUE(launch.End(0, "").ok());
  }
  { const LaunchRecord killed = StartRun("runs/killed", 1000); }
  Write("runs/ended/summary.json", SummaryToJson({.job = "small",
                                                  .mode = "async",
                                                  .epochs = 3,
                                                  .steps = 30,
                                                  .examples = 1200,
                                                  .seconds = 1.5,
                                                  .samples_per_second = 800,
                                                  .train_loss = 0.00002,
                                                  .train_loss_epoch = 3,
                                                  .test_accuracy = 0.875}));
  EXPECT_EQ(Run({}), 0) << err_.str();
  EXPECT_EQ(out_.str(),
            "run runs/ended: finished\n  job small: async; started 1970-01-01 00:33:20 UTC\n  3 epochs in 1.5 s: 1,200 "
            "examples at 800 samples/s\n  train loss 2e-05 in epoch 3; test accuracy 0.8750\n");
  out_.str("");
  EXPECT_EQ(Run({"runs/killed"}), 0);
  EXPECT_THAT(out_.str(), StartsWith("run runs/killed: failed: the launch was killed\n"));
}

TEST_F(StatusCommandTest, PrintsAnEndedRunAsOneJsonObject) {
  EnterFolder();
  Write("summary.json", SummaryToJson({.job = "small", .steps = 30}));
  EXPECT_EQ(Run({".", "--json"}), 0) << err_.str();
  const auto json = nlohmann::json::parse(out_.str());
  EXPECT_EQ(json["run"]["state"], "finished");
  EXPECT_EQ(json["summary"]["steps"], 30);
  EXPECT_TRUE(json["shard"].is_null());
  EXPECT_TRUE(json["job"].is_null());
}

TEST_F(StatusCommandTest, SaysWhereTheTokenIs) {
  EnterFolder();
  shard_.refusal = {grpc::StatusCode::UNAUTHENTICATED, "got no token"};
  const std::string address = Serve(true);
  EXPECT_EQ(Run({address}), 1);
  EXPECT_THAT(err_.str(), HasSubstr("error: if the server requires a token: ballast status RUN_DIR finds that of a "));
  err_.str("");
  const LaunchRecord launch = StartRun("runs/mine", 1000);
  Write("runs/mine/logs/server-1.address", address + "\n");
  EXPECT_EQ(Run({address}), 1);
  EXPECT_THAT(err_.str(), HasSubstr("error: the server belongs to the run runs/mine, which requires the token in "
                                    "runs/mine/security/reader.token: want ballast status runs/mine, or --run"));
}

TEST_F(StatusCommandTest, RefusesADirectoryWithoutARun) {
  EnterFolder();
  std::filesystem::create_directories("empty");
  EXPECT_EQ(Run({"empty"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("error: run directory empty: has none of launch.json, "));
}

}  // namespace
}  // namespace ballast
