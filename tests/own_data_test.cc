// SPDX-License-Identifier: Apache-2.0
// Workers with their own model and data: the job that they join has only a name.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "client/client.h"
#include "client/coordinator_link.h"
#include "common/status/error_reason.h"
#include "gtest/gtest.h"
#include "tests/testing/cluster.h"

namespace ballast {
namespace {

constexpr absl::Duration kTestTimeout = absl::Seconds(30);

// A worker that trains in sync mode, each step with a gradient of ones.
class OwnWorker {
 public:
  OwnWorker(Cluster& cluster, uint32_t rank) {
    auto link = CoordinatorLink::Connect(cluster.server(0).address(), kTestTimeout);
    EXPECT_TRUE(link.ok()) << link.status();
    link_ = *std::move(link);
    v1::JoinRequest request;
    request.set_role(v1::ROLE_WORKER);
    request.set_rank(rank);
    request.set_description("a trainer of its own");
    request.mutable_job()->set_name("cluster");
    const absl::StatusOr<v1::JoinResponse> joined = link_->Join(request, kTestTimeout);
    EXPECT_TRUE(joined.ok()) << joined.status();
    EXPECT_EQ(joined->workers(), 2);
    link_->StartHeartbeats({});
    ClientOptions options = cluster.Options(rank);
    options.incarnation = joined->member().incarnation();
    auto client = Join(options, {Spec(1, "w", 3)});
    EXPECT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
  }

  CoordinatorLink& link() { return *link_; }

  Future<PushResult> Step() {
    return client_->PushPull(step_++, 1, {{1, ones_, {}}}, {{1, absl::MakeSpan(values_), {}}});
  }
  float value() const { return values_[0]; }

 private:
  std::unique_ptr<CoordinatorLink> link_;
  std::unique_ptr<Client> client_;
  uint64_t step_ = 0;
  const std::vector<float> ones_ = {1, 1, 1};
  std::vector<float> values_ = {0, 0, 0};
};

TEST(OwnDataTest, WorkersTrainInSyncWithoutLeasesAndTheJobEndsWhenTheyHaveLeft) {
  Cluster cluster(2, 2);
  OwnWorker first(cluster, 0), second(cluster, 1);
  EXPECT_EQ(ReasonOf(first.link().AcquireLease(absl::Seconds(1)).status()), v1::ERROR_REASON_NO_DATA);
  for (int step = 0; step < 3; ++step) {
    const Future<PushResult> one = first.Step(), other = second.Step();
    ASSERT_TRUE(one.Get().ok()) << one.Get().status();
    ASSERT_TRUE(other.Get().ok()) << other.Get().status();
  }
  EXPECT_EQ(first.value(), 97);
  ASSERT_TRUE(second.link().Leave("").ok());
  // No worker waits for it any more.
  const Future<PushResult> alone = first.Step();
  ASSERT_TRUE(alone.Get().ok()) << alone.Get().status();
  EXPECT_EQ(first.value(), 96);
  EXPECT_EQ(first.link().GetProgress()->progress().state(), v1::JOB_STATE_RUNNING);
  ASSERT_TRUE(first.link().Leave("").ok());
  auto link = CoordinatorLink::Connect(cluster.server(0).address(), kTestTimeout);
  ASSERT_TRUE(link.ok()) << link.status();
  EXPECT_EQ((*link)->GetProgress()->progress().state(), v1::JOB_STATE_FINISHED);
}

}  // namespace
}  // namespace ballast
