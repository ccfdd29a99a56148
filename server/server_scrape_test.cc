// SPDX-License-Identifier: Apache-2.0
// A scrape of server 0 with the state of a job of 1,000 workers, over HTTP.
#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "ballast/v1/coordinator_service.grpc.pb.h"
#include "common/http/testing/raw_http_client.h"
#include "common/program/this_process.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "server/server.h"

namespace ballast {
namespace {

constexpr uint32_t kWorkers = 1000;
constexpr size_t kMaxBytes = 1 << 20;
// The page says 50 ms; a machine that also builds has other numbers, so the time is printed and this only catches a
// page whose work grows with the square of the workers.
constexpr absl::Duration kMaxTime = absl::Seconds(5);

class ServerScrapeTest : public testing::Test {
 protected:
  void SetUp() override {
    Server::Options options;
    options.http_listen = "127.0.0.1:0";
    options.workers = kWorkers;
    // The workers send no heartbeats.
    options.member_ttl = absl::Minutes(10);
    auto server = Server::Start(std::move(options));
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    JobConfig job{"job", {}, kWorkers, {}};
    job.policy.mutable_async();
    std::vector<OwnedTensor> tensors(1);
    tensors[0].spec.set_id(1);
    tensors[0].spec.set_name("w");
    tensors[0].spec.add_shape(4);
    tensors[0].spec.mutable_optimizer()->mutable_sgd()->set_learning_rate(1);
    const auto declared = server_->shard().Declare(job, tensors);
    ASSERT_TRUE(declared.ok()) << declared.status();
  }

  // All workers join, push once and report their progress.
  void RunWorkers() {
    const auto stub =
        v1::CoordinatorService::NewStub(grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials()));
    const std::vector<float> values(4, 1);
    const absl::string_view payload(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    for (uint32_t rank = 0; rank < kWorkers; ++rank) {
      v1::JoinRequest join;
      join.set_protocol_version(kProtocolVersion);
      join.set_role(v1::ROLE_WORKER);
      join.set_rank(rank);
      join.set_description(absl::StrCat("host-", rank, ".example, process ", 1000 + rank));
      join.mutable_job()->set_name("job");
      v1::JoinResponse joined;
      grpc::ClientContext context;
      const grpc::Status status = stub->Join(&context, join, &joined);
      ASSERT_TRUE(status.ok()) << status.error_message();
      const uint64_t incarnation = joined.member().incarnation();
      const GradientView view{{1, 0}, 0, v1::ENCODING_FP32, {&payload, 1}};
      ASSERT_TRUE(server_->shard().Push("job", {rank, incarnation, 1, 0, 1}, {view}).ok());
      v1::ReportProgressRequest report;
      *report.mutable_member() = joined.member();
      report.mutable_progress()->set_step(1'000'000 + rank);
      report.mutable_progress()->add_acknowledged_pushes(1);
      v1::ReportProgressResponse reported;
      grpc::ClientContext reporting;
      ASSERT_TRUE(stub->ReportProgress(&reporting, report, &reported).ok());
    }
  }

  std::unique_ptr<Server> server_;
};

TEST_F(ServerScrapeTest, PageOfAThousandWorkersIsSmallAndQuick) {
  ASSERT_NO_FATAL_FAILURE(RunWorkers());
  std::string page;
  std::vector<absl::Duration> times;
  for (int i = 0; i < 20; ++i) {
    const absl::Time began = absl::Now();
    page = AskHttp(server_->http_address(), "GET", "/metrics");
    times.push_back(absl::Now() - began);
  }
  std::sort(times.begin(), times.end());
  std::cout << "scrape of a server with " << kWorkers << " workers: median " << times[times.size() / 2] << ", slowest "
            << times.back() << ", " << page.size() << " bytes" << std::endl;
  EXPECT_NE(page.find("\nballast_members{role=\"worker\",state=\"joined\"} 1000\n"), page.npos);
  EXPECT_NE(page.find("\nballast_member_step{worker=\"999\"} 1000999\n"), page.npos);
  EXPECT_NE(page.find("\nballast_accepted_pushes_total{worker=\"999\"} 1\n"), page.npos);
  EXPECT_LE(page.size(), kMaxBytes);
  EXPECT_LT(times.back(), kMaxTime);
}

}  // namespace
}  // namespace ballast
