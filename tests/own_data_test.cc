// SPDX-License-Identifier: Apache-2.0
// Workers with their own model and data: the job that they join has only a name, and they set the initial values of
// its tensors.
#include "absl/strings/str_cat.h"
#include "client/coordinator_link.h"
#include "common/status/error_reason.h"
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

// --- initial values that a client sets ---

// Several slices, on both servers.
constexpr int64_t kElements = int64_t{3} << 20;
// Slices of that tensor and of a small one.
constexpr uint32_t kSlices = 8 + 1;

class SetValuesTest : public testing::Test {
 protected:
  SetValuesTest() {
    StartServers();
    for (v1::TensorSpec& spec : specs_) spec.mutable_initializer()->mutable_provided();
  }

  // Starts the servers on their previous logs and addresses.
  void StartServers() {
    servers_.clear();
    for (uint32_t rank = 0; rank < 2; ++rank) {
      Server::Options options;
      options.rank = rank;
      options.servers = 2;
      options.workers = 2;
      options.max_state_bytes = uint64_t{1} << 28;
      options.state_dir = absl::StrCat(folder_, "/", rank);
      if (rank > 0) options.coordinator = servers_[0]->address();
      if (!addresses_[rank].empty()) options.listen = addresses_[rank];
      servers_.push_back(StartServer(std::move(options)));
      ASSERT_NE(servers_[rank], nullptr);
      addresses_[rank] = servers_[rank]->address();
    }
  }

  absl::StatusOr<std::unique_ptr<Client>> Connect(uint32_t worker, uint64_t incarnation = 1) {
    ClientOptions options;
    options.coordinator = addresses_[0];
    options.job = "tuned";
    options.policy.mutable_async();
    options.durability.set_mode(v1::Durability::WAL);
    options.workers = 2;
    options.worker = worker;
    options.incarnation = incarnation;
    return Join(std::move(options), specs_);
  }

  static std::vector<FirstValues> Views(const std::vector<std::vector<float>>& tensors) {
    std::vector<FirstValues> views;
    for (const std::vector<float>& values : tensors) {
      views.push_back({static_cast<uint32_t>(views.size() + 1), absl::MakeConstSpan(values)});
    }
    return views;
  }

  static std::vector<std::vector<float>> Tensors(float first) {
    std::vector<std::vector<float>> tensors = {std::vector<float>(kElements), std::vector<float>(5)};
    for (std::vector<float>& values : tensors) {
      for (size_t i = 0; i < values.size(); ++i) values[i] = first + static_cast<float>(i % 1000);
    }
    return tensors;
  }

  const std::string folder_ =
      absl::StrCat(testing::TempDir(), "/", testing::UnitTest::GetInstance()->current_test_info()->name());
  std::string addresses_[2];
  std::vector<v1::TensorSpec> specs_ = {Spec(1, "big", kElements), Spec(2, "small", 5)};
  std::vector<std::unique_ptr<Server>> servers_;
};

TEST_F(SetValuesTest, OthersBeginWithWhatOneSetsAndItOutlivesTheServers) {
  auto first = Connect(0), second = Connect(1);
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_TRUE(second.ok()) << second.status();
  // The second waits for the values that the first has.
  std::vector<std::vector<float>> pulled = Tensors(-1);
  const std::vector<TensorValues> into = {{1, absl::MakeSpan(pulled[0]), {}}, {2, absl::MakeSpan(pulled[1]), {}}};
  const Future<PullResult> pull = (*second)->Pull(0, into);
  EXPECT_FALSE(pull.WaitFor(absl::ZeroDuration()));
  const std::vector<std::vector<float>> values = Tensors(0.5);
  const absl::StatusOr<SetResult> set = (*first)->SetValues(Views(values)).Get();
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ(set->set, kSlices);
  ASSERT_TRUE(pull.Get().ok()) << pull.Get().status();
  EXPECT_EQ(pulled, values);
  const std::vector<float> ones(5, 1);
  ASSERT_TRUE((*second)->Push(0, 1, {{2, ones, {}}}).Get().ok());
  first = absl::UnknownError("gone");
  second = absl::UnknownError("gone");

  StartServers();
  first = Connect(0, 2);
  ASSERT_TRUE(first.ok()) << first.status();
  const absl::StatusOr<PullResult> after = (*first)->Pull(0, into).Get();
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_EQ(pulled[0], values[0]);
  EXPECT_EQ(pulled[1][0], values[1][0] - 1);
  // A restarted worker sets them again, and nothing changes.
  const absl::StatusOr<SetResult> again = (*first)->SetValues(Views(values)).Get();
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->unchanged, kSlices);
  const absl::Status other = (*first)->SetValues(Views(Tensors(7))).Get().status();
  EXPECT_EQ(other.code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(SetValuesTest, RefusesMemoryThatIsNotTheTensors) {
  auto client = Connect(0);
  ASSERT_TRUE(client.ok()) << client.status();
  const std::vector<float> four(4, 1);
  EXPECT_EQ((*client)->SetValues({{2, four}}).Get().status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ((*client)->SetValues({{9, four}}).Get().status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ballast
