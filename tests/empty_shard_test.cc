// SPDX-License-Identifier: Apache-2.0
// Jobs with more servers than slices: a shard without slices responds like the others, in all modes and durabilities.
#include <tuple>

#include "gmock/gmock.h"
#include "tests/testing/cluster.h"
#include "tests/testing/job_test.h"
#include "tests/testing/raw_call.h"

namespace ballast {
namespace {

using ::testing::Each;

constexpr uint32_t kServers = 8;
constexpr int kSlices = 6;

v1::ConsistencyPolicy Policy(const std::string& mode) {
  v1::ConsistencyPolicy policy;
  if (mode == "Sync") policy.mutable_sync()->set_deterministic(true);
  if (mode == "Async") policy.mutable_async();
  if (mode == "Bounded") policy.mutable_bounded()->set_steps_ahead(1);
  return policy;
}

// Eight servers and two workers' clients, in this process.
class EmptyShardTest : public ::testing::TestWithParam<std::tuple<std::string, v1::Durability::Mode>> {
 protected:
  EmptyShardTest() {
    durability_.set_mode(std::get<1>(GetParam()));
    for (int id = 1; id <= kSlices; ++id) specs_.push_back(Spec(id, absl::StrCat("w", id), 10));
    folder_ = absl::StrCat(
        ::testing::TempDir(), "/",
        absl::StrReplaceAll(::testing::UnitTest::GetInstance()->current_test_info()->name(), {{"/", "-"}}));
    std::filesystem::remove_all(folder_);
    StartServers();
  }

  ~EmptyShardTest() override { EndServers(); }

  // Ends the coordinator last, because the others tell it that they leave.
  void EndServers() {
    while (!servers_.empty()) servers_.pop_back();
  }

  void StartServers() {
    for (uint32_t rank = 0; rank < kServers; ++rank) servers_.push_back(Start(rank));
    if (durability_.mode() != v1::Durability::STANDBY) return;
    AwaitMembers(v1::ROLE_SERVER, [](const auto&) { return true; });
    for (uint32_t rank = 0; rank < kServers; ++rank) servers_.push_back(Start(rank));
  }

  std::unique_ptr<Server> Start(uint32_t rank) {
    Server::Options options;
    options.rank = rank;
    options.servers = kServers;
    options.workers = 2;
    options.max_state_bytes = uint64_t{1} << 24;
    options.with_standby = durability_.mode() == v1::Durability::STANDBY;
    if (!servers_.empty()) options.coordinator = servers_[0]->address();
    if (durability_.mode() == v1::Durability::WAL) options.state_dir = absl::StrCat(folder_, "/", rank);
    if (durability_.mode() == v1::Durability::CHECKPOINT) options.checkpoint_dir = absl::StrCat(folder_, "/cuts");
    return StartServer(std::move(options));
  }

  // Waits until `wanted` holds for all eight members of that role.
  template <typename Wanted>
  void AwaitMembers(v1::Role role, Wanted wanted) {
    const auto channel = OpenConnection(servers_[0]->address());
    const absl::Time deadline = absl::Now() + kTestTimeout;
    uint32_t found = 0;
    while (found < kServers) {
      ASSERT_LT(absl::Now(), deadline) << "got " << found << " of " << v1::Role_Name(role);
      const v1::GetProgressResponse progress = AskProgress(channel);
      found = 0;
      for (const auto& member : progress.members()) {
        if (member.member().role() == role && member.state() == "joined" && wanted(member)) ++found;
      }
    }
  }

  std::unique_ptr<Client> Connect(uint32_t worker, uint64_t incarnation = 1) {
    ClientOptions options;
    options.coordinator = servers_[0]->address();
    options.job = "small";
    options.policy = Policy(std::get<0>(GetParam()));
    options.durability = durability_;
    options.workers = 2;
    options.worker = worker;
    options.incarnation = incarnation;
    auto client = Join(options, specs_);
    EXPECT_TRUE(client.ok()) << client.status();
    return *std::move(client);
  }

  Future<PushResult> PushPull(Client& client, uint64_t step) {
    std::vector<TensorGradient> gradients;
    std::vector<TensorValues> values;
    values_.assign(kSlices, std::vector<float>(10, -1));
    for (int i = 0; i < kSlices; ++i) {
      gradients.push_back({specs_[i].id(), ones_});
      values.push_back({specs_[i].id(), absl::MakeSpan(values_[i])});
    }
    return client.PushPull(step, 1, gradients, values);
  }

  v1::Durability durability_;
  std::vector<v1::TensorSpec> specs_;
  std::string folder_;
  const std::vector<float> ones_ = std::vector<float>(10, 1);
  std::vector<std::vector<float>> values_;
  std::vector<std::unique_ptr<Server>> servers_;
};

TEST_P(EmptyShardTest, AnswersAPauseAsOthersDo) {
  std::unique_ptr<Client> stays = Connect(0), goes = Connect(1);
  const absl::Status paused = goes->Pause();
  ASSERT_TRUE(paused.ok()) << paused;
  // No worker waits for the paused one.
  for (uint64_t step = 0; step < 3; ++step) {
    const auto pushed = PushPull(*stays, step).Get();
    ASSERT_TRUE(pushed.ok()) << pushed.status();
  }
  EXPECT_THAT(values_, Each(Each(97.0f)));
  const auto statuses = stays->GetStatus();
  ASSERT_TRUE(statuses.ok()) << statuses.status();
  ASSERT_EQ(statuses->size(), kServers);
  uint64_t slices = 0, without = 0;
  for (const v1::GetStatusResponse& status : *statuses) {
    EXPECT_EQ(status.job(), "small") << status.shard();
    EXPECT_EQ(status.workers(), 2);
    EXPECT_EQ(status.durability(), durability_.mode());
    slices += status.slices();
    without += status.slices() == 0;
  }
  EXPECT_EQ(slices, kSlices);
  EXPECT_EQ(without, kServers - kSlices);
}

TEST_P(EmptyShardTest, TakesAPushAndAPullOfNothing) {
  std::unique_ptr<Client> client = Connect(0);
  const std::vector<std::string> addresses = client->shard_map().shards();
  for (const std::string& address : addresses) {
    const auto channel = OpenConnection(address);
    for (const bool again : {false, true}) {
      v1::PushRequest push;
      push.mutable_header()->set_job("small");
      push.mutable_header()->set_incarnation(1);
      push.mutable_header()->set_sequence(100);
      const auto pushed = Ask<v1::ParameterService>(channel, &v1::ParameterService::Stub::Push, push);
      EXPECT_EQ(pushed.outcome().duplicate(), again);
    }
    v1::PullRequest pull;
    pull.set_job("small");
    pull.set_step(7);
    const auto pulled = Ask<v1::ParameterService>(channel, &v1::ParameterService::Stub::Pull, pull);
    EXPECT_EQ(pulled.values_size(), 0);
  }
}

TEST_P(EmptyShardTest, ComesBackOrIsHeldTwiceAsOthers) {
  std::unique_ptr<Client> stays = Connect(0), goes = Connect(1);
  ASSERT_TRUE(goes->Pause().ok());
  const auto pushed = PushPull(*stays, 0).Get();
  ASSERT_TRUE(pushed.ok()) << pushed.status();
  if (durability_.mode() == v1::Durability::STANDBY) {
    AwaitMembers(v1::ROLE_STANDBY, [](const auto& member) { return member.in_step(); });
    ASSERT_TRUE(PushPull(*stays, 1).Get().ok());
  }
  if (durability_.mode() != v1::Durability::WAL) return;
  stays.reset();
  goes.reset();
  EndServers();
  StartServers();
  stays = Connect(0, 2);
  const auto statuses = stays->GetStatus();
  ASSERT_TRUE(statuses.ok()) << statuses.status();
  for (const v1::GetStatusResponse& status : *statuses) EXPECT_EQ(status.job(), "small") << status.shard();
  const absl::Status paused = Connect(1, 2)->Pause();
  EXPECT_TRUE(paused.ok()) << paused;
}

INSTANTIATE_TEST_SUITE_P(All, EmptyShardTest,
                         ::testing::Combine(::testing::Values("Sync", "Async", "Bounded"),
                                            ::testing::Values(v1::Durability::NONE, v1::Durability::WAL,
                                                              v1::Durability::CHECKPOINT, v1::Durability::STANDBY)),
                         [](const auto& info) {
                           return absl::StrCat(std::get<0>(info.param),
                                               v1::Durability::Mode_Name(std::get<1>(info.param)));
                         });

class EmptyShardCheckpointTest : public JobTest {
 protected:
  // Three dense layers have six tensors of one slice each.
  void WriteSmallJob(std::vector<std::pair<std::string, std::string>> changes) const {
    changes.emplace_back("  layers { relu {} }\n", "  layers { relu {} }\n  layers { dense { units: 8 } }\n");
    WriteJob(changes);
  }
};

// With the real programs: each mode and each durability once.
class EmptyShardJobTest : public EmptyShardCheckpointTest,
                          public ::testing::WithParamInterface<std::tuple<const char*, const char*>> {};

TEST_P(EmptyShardJobTest, TrainsToTheEnd) {
  const auto [policy, durability] = GetParam();
  WriteSmallJob({{"policy { sync { deterministic: true } }",
                  absl::StrCat("durability { mode: ", durability, " }\npolicy { ", policy, " }")}});
  const auto summary = Train({"--servers", "8", "--workers", "2"});
  EXPECT_EQ(summary["examples"], 3 * 157);
}

INSTANTIATE_TEST_SUITE_P(All, EmptyShardJobTest,
                         ::testing::Values(std::tuple{"bounded { steps_ahead: 4 }", "NONE"},
                                           std::tuple{"async {}", "WAL"},
                                           std::tuple{"bounded { steps_ahead: 4 }", "STANDBY"}),
                         [](const auto& info) { return absl::StrCat("Job", info.index); });

TEST_F(EmptyShardCheckpointTest, GoesOnFromACheckpoint) {
  WriteSmallJob(
      {{"epochs: 3", "epochs: 200"}, {"policy {", "durability { mode: CHECKPOINT checkpoint_seconds: 1 }\npolicy {"}});
  Train({"--servers", "8", "--workers", "2"}, "whole");
  Train({"--servers", "8", "--workers", "2", "--resume", Path("whole/checkpoints")});
  EXPECT_EQ(Read("run/model.safetensors"), Read("whole/model.safetensors"));
}

}  // namespace
}  // namespace ballast
