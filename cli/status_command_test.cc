// SPDX-License-Identifier: Apache-2.0
#include <google/protobuf/text_format.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <sstream>

#include "absl/strings/str_cat.h"
#include "ballast/v1/coordinator_service.grpc.pb.h"
#include "ballast/v1/parameter_service.grpc.pb.h"
#include "cli/command/command.h"
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
  grpc::Status GetStatus(grpc::ServerContext*, const v1::GetStatusRequest* request,
                         v1::GetStatusResponse* response) override {
    if (!request->job().empty() && request->job() != "fashion_mnist") {
      return {grpc::StatusCode::FAILED_PRECONDITION, "this server holds job \"fashion_mnist\""};
    }
    Fill(
        "shard: 1 job: 'fashion_mnist' policy: 'sync' workers: 2 tensors: 6 slices: 7 state_bytes: 3145728 pushes: "
        "12345 "
        "duplicates: 1 version: '0.1.0' max_staleness: 3 staleness { buckets: [2, 2] count: 4 sum: 2 } "
        "wait_microseconds { buckets: 3 count: 4 sum: 2500 max: 2500 } push_bytes: 3145728 pull_bytes: 12582912 "
        "bytes_in_flight_limit: 268435456",
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
        "last_evaluation { epoch: 1 loss: 0.25 } } servers: 2 workers: 2 "
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
  EXPECT_THAT(out_.str(), HasSubstr("  holds     6 tensors in 7 slices, 3.0 MiB\n"));
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
                        "  after epoch 1: test loss 0.25\n"));
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
  EXPECT_EQ(json["shard"]["staleness"]["mean"], 0.5);
  EXPECT_EQ(json["shard"]["wait_microseconds"]["max"], 2500);
  EXPECT_EQ(json["shard"]["push_bytes"], 3 << 20);
  EXPECT_EQ(json["job"]["wait_share"], 0.25);
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
  for (const char* address : {"localhost", ":7700", "localhost:", "localhost:0", "localhost:65536", "localhost:http"}) {
    err_.str("");
    EXPECT_EQ(Run({address}), 2);
    EXPECT_EQ(err_.str(), absl::StrCat("error: address: got \"", address, "\", want host:port\n"));
  }
  EXPECT_EQ(Run({}), 2);
}

}  // namespace
}  // namespace ballast
