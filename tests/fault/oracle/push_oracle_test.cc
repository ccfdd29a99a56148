// SPDX-License-Identifier: Apache-2.0
// The short form of exactly once: no acknowledged push is lost or applied twice, though a tenth of the replies is
// lost after the push was applied. Also shows that the oracle detects such errors.
#include "tests/fault/oracle/push_oracle.h"

#include "gtest/gtest.h"
#include "tests/fault/oracle/push_faults.h"
#include "tests/fault/programs/program.h"
#include "tests/testing/tensors.h"

namespace ballast {
namespace {

FaultRunOptions LostReplies(v1::ConsistencyPolicy policy, uint64_t pushes) {
  FaultRunOptions options;
  options.server = "server/ballast_server";
  options.policy = policy;
  options.pushes = pushes;
  options.plan.drop_replies = 0.1;
  options.plan.silence = absl::Milliseconds(50);
  return options;
}

v1::ConsistencyPolicy Async() {
  v1::ConsistencyPolicy policy;
  policy.mutable_async();
  return policy;
}

void ExpectExactlyOnceIn(const FaultRunOptions& options) {
  const absl::StatusOr<FaultCounts> counts = RunFaults(options);
  ASSERT_TRUE(counts.ok()) << counts.status();
  EXPECT_EQ(counts->pushes_acknowledged, options.workers * options.pushes);
  EXPECT_EQ(counts->pushes_lost, 0u);
  EXPECT_EQ(counts->pushes_duplicated, 0u);
  EXPECT_EQ(counts->wrong_weights, 0u);
  EXPECT_EQ(counts->wrong_pulls, 0u);
  EXPECT_EQ(counts->hangs, 0u);
  // Otherwise no fault was injected.
  EXPECT_GT(counts->replies_dropped, options.pushes / 10);
  EXPECT_GT(counts->duplicates_refused, 0u);
  // Half of the streams' life is the pause before the next one.
  EXPECT_EQ(counts->stream_calls > options.pushes / 20, options.data_streams);
}

// By data streams, or by gRPC alone.
class LostRepliesTest : public testing::TestWithParam<bool> {
 protected:
  void ExpectExactlyOnce(const v1::ConsistencyPolicy& policy, uint64_t pushes) {
    FaultRunOptions options = LostReplies(policy, pushes);
    options.data_streams = GetParam();
    ExpectExactlyOnceIn(options);
  }
};

TEST_P(LostRepliesTest, AsyncAppliesEachPushOnce) { ExpectExactlyOnce(Async(), 300); }

TEST_P(LostRepliesTest, BoundedAppliesEachPushOnce) {
  v1::ConsistencyPolicy policy;
  policy.mutable_bounded()->set_steps_ahead(2);
  ExpectExactlyOnce(policy, 60);
}

TEST_P(LostRepliesTest, SyncAppliesEachStepOnce) {
  v1::ConsistencyPolicy policy;
  policy.mutable_sync()->set_deterministic(true);
  ExpectExactlyOnce(policy, 60);
}

INSTANTIATE_TEST_SUITE_P(Transports, LostRepliesTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "DataStreams" : "Grpc"; });

// Calls in shared memory lose their responses whenever the connections end.
class SharedMemoryOracleTest : public testing::TestWithParam<std::string> {};

TEST_P(SharedMemoryOracleTest, AppliesEachPushOnceThoughResponsesAreLost) {
  FaultRunOptions options;
  options.server = "server/ballast_server";
  if (GetParam() == "async") {
    options.policy.mutable_async();
    // Otherwise few responses are on their way when a connection ends: those of the other modes wait for other workers.
    options.durability = v1::Durability::WAL_SYNC;
    options.state_folder = testing::TempDir() + "/shared-memory";
  }
  if (GetParam() == "bounded") options.policy.mutable_bounded()->set_steps_ahead(2);
  if (GetParam() == "sync") options.policy.mutable_sync()->set_deterministic(true);
  options.shared_memory = true;
  // Longer than a client waits before it asks for memory again.
  options.cut_every = absl::Milliseconds(1300);
  options.pushes = 1000000000;
  options.time = absl::Seconds(6);
  const absl::StatusOr<FaultCounts> counts = RunFaults(options);
  ASSERT_TRUE(counts.ok()) << counts.status();
  EXPECT_TRUE(counts->good()) << counts->ToJson();
  EXPECT_GT(counts->retries, 0u);
  EXPECT_GT(counts->duplicates_refused, 0u);
  EXPECT_GT(counts->shared_calls, counts->pushes_acknowledged / 10);
}

INSTANTIATE_TEST_SUITE_P(Policies, SharedMemoryOracleTest, testing::Values("async", "bounded", "sync"),
                         [](const auto& info) { return info.param; });

TEST(PushOracleTest, WorksAgainSoonAfterAPartition) {
  FaultRunOptions options;
  options.server = "server/ballast_server";
  options.policy = Async();
  options.pushes = 1000000;
  options.time = absl::Seconds(8);
  options.partition_every = absl::Milliseconds(500);
  options.partition_for = absl::Seconds(2);
  const absl::StatusOr<FaultCounts> counts = RunFaults(options);
  ASSERT_TRUE(counts.ok()) << counts.status();
  EXPECT_EQ(counts->pushes_lost, 0u);
  EXPECT_EQ(counts->pushes_duplicated, 0u);
  EXPECT_EQ(counts->wrong_weights, 0u);
  EXPECT_GE(counts->partitions, 2u);
  EXPECT_EQ(counts->hangs, 0u);
  EXPECT_LE(Quantile(counts->healing_seconds, 1), 5);
}

// One server, reached directly, and another client that pushes as a restarted worker 0.
class BooksTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto server = ServerProcess::Start("server/ballast_server", "127.0.0.1", {"--workers", "2"});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    job_.servers = {server_->address()};
    job_.client.job = "books";
    job_.client.policy.mutable_async();
    job_.workers = 2;
    job_.pushes = 20;
    job_.tensors = 2;
    job_.elements = 4;
  }

  // Returns the oracle's report after another client pushed a gradient of tensor 1.
  OracleReport ReportAfter(const std::vector<float>& gradient) {
    auto oracle = PushOracle::Start(job_);
    EXPECT_TRUE(oracle.ok()) << oracle.status();
    EXPECT_TRUE((*oracle)->AwaitEnd(absl::Now() + absl::Seconds(30)));
    ClientOptions options = job_.client;
    options.shards = job_.servers;
    options.workers = 2;
    options.incarnation = uint64_t{1} << 62;
    auto stranger = Join(std::move(options), {SgdSpec(0, "count0", 4), SgdSpec(1, "count1", 4)});
    EXPECT_TRUE(stranger.ok()) << stranger.status();
    const std::vector<TensorGradient> gradients = {{1, gradient}};
    EXPECT_EQ((*stranger)->Push(0, 1, gradients).Get().status(), absl::OkStatus());
    const auto report = (*oracle)->Finish();
    EXPECT_TRUE(report.ok()) << report.status();
    return report.value_or(OracleReport());
  }

  std::unique_ptr<ServerProcess> server_;
  OracleJob job_;
};

TEST_F(BooksTest, BalanceWhenNothingHappens) {
  const OracleReport report = ReportAfter({0, 0, 0, 0});
  EXPECT_EQ(report.acknowledged, 40u);
  EXPECT_EQ(report.lost, 0u);
  EXPECT_EQ(report.duplicated, 0u);
  EXPECT_EQ(report.wrong_weights, 0u);
}

TEST_F(BooksTest, ShowAPushAppliedTwice) {
  const OracleReport report = ReportAfter({1, 0, 0, 0});
  EXPECT_EQ(report.duplicated, 1u);
  EXPECT_EQ(report.lost, 0u);
  EXPECT_EQ(report.wrong_weights, 1u);
}

TEST_F(BooksTest, ShowPushesThatWereLost) {
  const OracleReport report = ReportAfter({-2, -1, 0, 0});
  EXPECT_EQ(report.duplicated, 0u);
  EXPECT_EQ(report.lost, 3u);
  EXPECT_EQ(report.wrong_weights, 2u);
}

TEST_F(BooksTest, ShowAWeightThatIsWrongThoughTheCountsAreRight) {
  const OracleReport report = ReportAfter({0, 0, 0, 1});
  EXPECT_EQ(report.lost + report.duplicated, 0u);
  EXPECT_EQ(report.wrong_weights, 1u);
}

TEST(QuantileTest, IsTheSmallestValueThatCoversTheShare) {
  EXPECT_EQ(Quantile({}, 0.5), 0);
  EXPECT_EQ(Quantile({3, 1, 2}, 0.5), 2);
  EXPECT_EQ(Quantile({3, 1, 2}, 1), 3);
  std::vector<double> hundred;
  for (int i = 1; i <= 100; ++i) hundred.push_back(i);
  EXPECT_EQ(Quantile(hundred, 0.95), 95);
}

}  // namespace
}  // namespace ballast
