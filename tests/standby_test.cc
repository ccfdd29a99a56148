// SPDX-License-Identifier: Apache-2.0
// Servers with standbys, all of them real and in this process: the state of a standby that takes over, and what a
// lost server can still do.
#include "gmock/gmock.h"
#include "tests/testing/cluster.h"
#include "tests/testing/raw_call.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kTestTimeout = absl::Seconds(30);
constexpr int64_t kElements = 3000;

// Shard 0 with the coordinator and shard 1, each with a standby. Tests are about shard 1: the coordinator's process
// is never killed.
class StandbyTest : public testing::Test {
 protected:
  StandbyTest() {
    coordinator_ = Start(0, "");
    first_standby_ = Start(0, coordinator_->address());
    server_ = Start(1, coordinator_->address());
    AwaitMember(v1::ROLE_SERVER, 1);
    standby_ = Start(1, coordinator_->address());
    AwaitMember(v1::ROLE_STANDBY, 0);
    AwaitMember(v1::ROLE_STANDBY, 1);
  }

  std::unique_ptr<Server> Start(uint32_t rank, const std::string& coordinator, const std::string& listen = "") {
    Server::Options options;
    if (!listen.empty()) options.listen = listen;
    options.rank = rank;
    options.with_standby = true;
    options.servers = 2;
    options.workers = 2;
    options.coordinator = coordinator;
    options.max_state_bytes = uint64_t{1} << 28;
    return StartServer(std::move(options));
  }

  std::shared_ptr<grpc::Channel> channel() const { return OpenConnection(coordinator_->address()); }
  // Waits until a member of that role is as `wanted`; returns it.
  template <typename Wanted>
  v1::Member Await(v1::Role role, uint32_t rank, uint64_t incarnation, absl::string_view what, Wanted wanted) {
    const absl::Time deadline = absl::Now() + kTestTimeout;
    while (absl::Now() < deadline) {
      const v1::GetProgressResponse progress = AskProgress(channel());
      for (const auto& status : progress.members()) {
        const v1::Member& member = status.member();
        const bool is_it = member.role() == role && member.rank() == rank && member.incarnation() >= incarnation;
        if (is_it && wanted(status)) return member;
      }
    }
    ADD_FAILURE() << v1::Role_Name(role) << " " << rank << " was not " << what << " within " << kTestTimeout;
    return {};
  }
  v1::Member AwaitMember(v1::Role role, uint32_t rank, uint64_t incarnation = 1) {
    return Await(role, rank, incarnation, "joined", [](const auto& status) { return status.state() == "joined"; });
  }
  // Waits until the standby of shard 1 could take over; returns it.
  v1::Member AwaitInStep(uint64_t incarnation = 1) {
    return Await(v1::ROLE_STANDBY, 1, incarnation, "in step", [](const auto& status) { return status.in_step(); });
  }
  v1::ShardMap Map() {
    return Ask<v1::CoordinatorService>(channel(), &v1::CoordinatorService::Stub::GetShardMap).map();
  }
  // Tells the coordinator that this member has ended, as the program that started its process would.
  void ReportEnd(const v1::Member& member) {
    v1::LeaveRequest request;
    *request.mutable_member() = member;
    request.set_failure("killed by signal 9");
    request.set_worker_local(true);
    Ask<v1::CoordinatorService>(channel(), &v1::CoordinatorService::Stub::Leave, request);
  }

  ClientOptions Options(uint64_t incarnation = 1, uint32_t worker = 0) {
    ClientOptions options;
    options.coordinator = coordinator_->address();
    options.job = "pairs";
    options.policy.mutable_async();
    options.workers = 2;
    options.worker = worker;
    options.incarnation = incarnation;
    options.durability.set_mode(v1::Durability::STANDBY);
    return options;
  }
  std::unique_ptr<Client> Connect(uint64_t incarnation = 1, uint32_t worker = 0) {
    auto client = Join(Options(incarnation, worker), specs_);
    EXPECT_TRUE(client.ok()) << client.status();
    return *std::move(client);
  }
  // Pushes worker 0's gradients of all tensors, number `times`.
  void Push(Client& client, int times) {
    for (const v1::TensorSpec& spec : specs_) {
      const std::vector<float> gradient(spec.shape(0), 1.0f / times);
      const auto pushed = client.Push(times, 1, {{spec.id(), gradient}}).Get();
      ASSERT_TRUE(pushed.ok()) << pushed.status();
    }
  }
  std::vector<std::vector<float>> Pull(Client& client) {
    std::vector<std::vector<float>> all;
    for (const v1::TensorSpec& spec : specs_) {
      std::vector<float>& values = all.emplace_back(spec.shape(0), -1);
      const auto pulled = client.Pull(0, {{spec.id(), absl::MakeSpan(values)}}).Get();
      EXPECT_TRUE(pulled.ok()) << pulled.status();
    }
    return all;
  }

  // Both shards hold some of them.
  std::vector<v1::TensorSpec> specs_ = [] {
    std::vector<v1::TensorSpec> specs = {Spec(1, "a", kElements), Spec(2, "b", kElements), Spec(3, "c", 2 << 20)};
    for (v1::TensorSpec& spec : specs) spec.mutable_optimizer()->mutable_adam()->set_learning_rate(0.1);
    return specs;
  }();
  std::unique_ptr<Server> coordinator_, first_standby_, server_, standby_;
};

TEST_F(StandbyTest, TakesOverWithTheBitsOfTheServerThatStopped) {
  std::unique_ptr<Client> client = Connect();
  for (int i = 1; i <= 3; ++i) Push(*client, i);
  AwaitInStep();
  for (int i = 4; i <= 6; ++i) Push(*client, i);
  const std::vector<std::vector<float>> before = Pull(*client);
  client.reset();
  server_.reset();
  AwaitMember(v1::ROLE_SERVER, 1, 2);
  client = Connect(2);
  EXPECT_EQ(Pull(*client), before);
  // Training continues like on the lost server, because the standby has the optimizer's slots, too.
  Push(*client, 7);
  const std::vector<std::vector<float>> after = Pull(*client);
  EXPECT_NE(after, before);
  std::unique_ptr<Server> alone_server = Server::Start({.workers = 2}).value();
  ClientOptions alone = Options();
  alone.coordinator = alone_server->address();
  alone.durability.Clear();
  auto reference = Join(alone, specs_);
  ASSERT_TRUE(reference.ok()) << reference.status();
  for (int i = 1; i <= 7; ++i) Push(**reference, i);
  EXPECT_EQ(Pull(**reference), after);
}

TEST_F(StandbyTest, RefusesAServerThatCountsRanksOtherwise) {
  absl::Notification refused;
  absl::Status reason;
  Server::Options options;
  options.rank = 1;
  options.with_standby = true;
  options.servers = 3;
  options.coordinator = coordinator_->address();
  options.on_fatal = [&](absl::Status status) {
    reason = std::move(status);
    refused.Notify();
  };
  standby_.reset();
  AwaitMember(v1::ROLE_SERVER, 1);
  auto server = Server::Start(std::move(options));
  ASSERT_TRUE(server.ok()) << server.status();
  ASSERT_TRUE(refused.WaitForNotificationWithTimeout(kTestTimeout));
  EXPECT_THAT(reason.message(), HasSubstr("has --servers 2, got --servers 3: with --with_standby want the same"));
}

TEST_F(StandbyTest, APushOfBeforeIsADuplicateAfter) {
  std::unique_ptr<Client> client = Connect();
  AwaitInStep();
  client.reset();
  auto push = [this](const std::string& address) {
    auto stub = v1::ParameterService::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
    v1::PushResponse response;
    grpc::Status status;
    const absl::Time deadline = absl::Now() + kTestTimeout;
    do {
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
      v1::PushRequest request;
      request.mutable_header()->set_job("pairs");
      request.mutable_header()->set_incarnation(5);
      request.mutable_header()->set_sequence(9);
      request.mutable_header()->set_examples(1);
      v1::SliceGradient* gradient = request.add_gradients();
      const v1::ShardMap map = Map();
      for (const v1::ShardMap::Tensor& tensor : map.tensors()) {
        for (const v1::ShardMap::Slice& slice : tensor.slices()) {
          if (slice.shard() != 1 || slice.range().elements() != kElements) continue;
          gradient->set_tensor_id(tensor.spec().id());
          gradient->set_slice_index(slice.range().index());
        }
      }
      gradient->set_payload(std::string(kElements * sizeof(float), '\0'));
      response.Clear();
      status = stub->Push(&context, request, &response);
    } while (status.error_code() == grpc::StatusCode::UNAVAILABLE && absl::Now() < deadline);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.outcome();
  };
  const v1::PushOutcome first = push(server_->address());
  EXPECT_FALSE(first.duplicate());
  ReportEnd(AwaitMember(v1::ROLE_SERVER, 1));
  const v1::PushOutcome second = push(standby_->address());
  EXPECT_TRUE(second.duplicate());
  EXPECT_EQ(second.applied(), first.applied());
}

TEST_F(StandbyTest, AStandbyThatComesLaterGetsTheWholeShard) {
  std::unique_ptr<Client> client = Connect();
  for (int i = 1; i <= 3; ++i) Push(*client, i);
  AwaitInStep();
  standby_.reset();
  // The server continues without a standby.
  Push(*client, 4);
  standby_ = Start(1, coordinator_->address());
  AwaitInStep(2);
  Push(*client, 5);
  const std::vector<std::vector<float>> before = Pull(*client);
  client.reset();
  server_.reset();
  AwaitMember(v1::ROLE_SERVER, 1, 2);
  client = Connect(2);
  EXPECT_EQ(Pull(*client), before);
}

TEST_F(StandbyTest, AServerThatWasGivenUpAcknowledgesNothingMore) {
  for (v1::TensorSpec& spec : specs_) spec = Spec(spec.id(), spec.name(), spec.shape(0));
  std::unique_ptr<Client> client = Connect();
  AwaitInStep();
  // Calls the processes that it knows, even if the shard map changes.
  ClientOptions direct = Options(1, 1);
  direct.shards = {coordinator_->address(), server_->address()};
  direct.coordinator.clear();
  direct.retry_timeout = absl::ZeroDuration();
  auto old = Join(direct, specs_);
  ASSERT_TRUE(old.ok()) << old.status();
  uint32_t on_shard_1 = 0;
  const v1::ShardMap map = Map();
  for (const v1::ShardMap::Tensor& tensor : map.tensors()) {
    if (tensor.slices_size() == 1 && tensor.slices(0).shard() == 1) on_shard_1 = tensor.spec().id();
  }
  ASSERT_GT(on_shard_1, 0);
  const std::vector<float> ones(kElements, 1);
  const v1::Member server = AwaitMember(v1::ROLE_SERVER, 1);
  int acknowledged = 0, after = 0;
  const absl::Time deadline = absl::Now() + kTestTimeout;
  while (absl::Now() < deadline) {
    if (acknowledged == 50) ReportEnd(server);
    const auto pushed = (*old)->Push(0, 1, {{on_shard_1, ones}}).Get();
    if (!pushed.ok()) break;
    ++acknowledged;
    if (acknowledged > 50) ++after;
  }
  ASSERT_GE(acknowledged, 50);
  AwaitMember(v1::ROLE_SERVER, 1, 2);
  client = Connect(2);
  std::vector<float> values(kElements, -1);
  const auto pulled = client->Pull(0, {{on_shard_1, absl::MakeSpan(values)}}).Get();
  ASSERT_TRUE(pulled.ok()) << pulled.status();
  // The call that got no response may have been applied.
  EXPECT_THAT(100 - values[0], testing::AnyOf(acknowledged, acknowledged + 1)) << after << " after it was lost";
  const auto refused = (*old)->Push(0, 1, {{on_shard_1, ones}}).Get();
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kUnavailable) << refused.status();
}

}  // namespace
}  // namespace ballast
