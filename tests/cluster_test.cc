// SPDX-License-Identifier: Apache-2.0
// Servers and clients of one job, all of them real and in this process.
#include "tests/testing/cluster.h"

#include <cmath>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "ballast/v1/coordinator_service.grpc.pb.h"
#include "ballast/v1/parameter_service.grpc.pb.h"
#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"

namespace ballast {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr uint32_t kSteps = 3;

std::vector<float> Pull(Client& client, uint32_t tensor, size_t elements, uint64_t step = 0) {
  std::vector<float> values(elements, -1);
  const auto pulled = client.Pull(step, {{tensor, absl::MakeSpan(values)}}).Get();
  EXPECT_TRUE(pulled.ok()) << pulled.status();
  return values;
}

// Element i is 4 * (worker + 1) * (step + 1) * (1 + i % 7), divisible by 4 so that means over 1, 2 or 4 workers are
// exact.
std::vector<float> WholeGradient(size_t elements, uint32_t worker, uint64_t step) {
  std::vector<float> gradient(elements);
  for (size_t i = 0; i < elements; ++i) gradient[i] = 4 * (worker + 1) * (step + 1) * (1 + i % 7);
  return gradient;
}

// Runs kSteps push-pulls, each of all tensors.
absl::Status Train(ClientOptions options, const std::vector<v1::TensorSpec>& specs) {
  const uint32_t worker = options.worker;
  auto client = Join(std::move(options), specs);
  if (!client.ok()) return client.status();
  std::vector<std::vector<float>> values;
  for (const v1::TensorSpec& spec : specs) values.emplace_back(spec.shape(0));
  for (uint64_t step = 0; step < kSteps; ++step) {
    std::vector<std::vector<float>> memory;
    std::vector<TensorGradient> gradients;
    std::vector<TensorValues> to;
    for (size_t i = 0; i < specs.size(); ++i) {
      memory.push_back(WholeGradient(values[i].size(), worker, step));
      gradients.push_back({specs[i].id(), memory[i]});
      to.push_back({specs[i].id(), absl::MakeSpan(values[i])});
    }
    const auto result = (*client)->PushPull(step, 1, gradients, to).Get();
    if (!result.ok()) return result.status();
  }
  return absl::OkStatus();
}

struct Size {
  uint32_t servers;
  uint32_t workers;
};

class ClusterSizeTest : public ::testing::TestWithParam<Size> {
 protected:
  ClusterSizeTest() : cluster_(GetParam().servers, GetParam().workers) {}

  // Runs every worker in its own thread, then returns the values of all tensors.
  std::vector<std::vector<float>> TrainAll(const v1::ConsistencyPolicy& policy) {
    std::vector<absl::Status> results(GetParam().workers);
    std::vector<std::thread> threads;
    for (uint32_t worker = 0; worker < GetParam().workers; ++worker) {
      ClientOptions options = cluster_.Options(worker);
      options.policy = policy;
      threads.emplace_back([&, options, worker] { results[worker] = Train(options, specs_); });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_THAT(results, Each(absl::OkStatus()));
    auto reader = Client::Connect(cluster_.Options(0));
    EXPECT_TRUE(reader.ok()) << reader.status();
    std::vector<std::vector<float>> values;
    for (const v1::TensorSpec& spec : specs_) values.push_back(Pull(**reader, spec.id(), spec.shape(0)));
    return values;
  }

  // Expects every element to be 100 - `times` * (1 + its index % 7).
  void ExpectLess(const std::vector<std::vector<float>>& tensors, float times) {
    for (const std::vector<float>& values : tensors) {
      size_t wrong = 0;
      for (size_t i = 0; i < values.size(); ++i) wrong += values[i] != 100 - times * (1 + i % 7);
      EXPECT_EQ(wrong, 0) << "of " << values.size() << " elements, the first " << values[0];
    }
  }

  Cluster cluster_;
  // Sizes from one element to several slices.
  const std::vector<v1::TensorSpec> specs_ = {Spec(1, "one", 1), Spec(2, "small", 1000), Spec(3, "slice", 1 << 20),
                                              Spec(4, "large", 3 * (1 << 20) + 5)};
};

TEST_P(ClusterSizeTest, SyncAppliesTheMeanOfAllWorkersOnceAStep) {
  v1::ConsistencyPolicy policy;
  policy.mutable_sync();
  // The mean of worker + 1 is (workers + 1) / 2, the sum of step + 1 is 6.
  ExpectLess(TrainAll(policy), 4 * 6 * (GetParam().workers + 1) / 2);
}

TEST_P(ClusterSizeTest, AsyncAppliesEveryGradientOnce) {
  v1::ConsistencyPolicy policy;
  policy.mutable_async();
  ExpectLess(TrainAll(policy), 4 * 6 * GetParam().workers * (GetParam().workers + 1) / 2);
}

INSTANTIATE_TEST_SUITE_P(Sizes, ClusterSizeTest, ::testing::Values(Size{1, 1}, Size{2, 2}, Size{5, 4}),
                         [](const auto& size) {
                           return absl::StrCat(size.param.servers, "Servers", size.param.workers, "Workers");
                         });

// Returns the weights after some Adam steps by two workers with fractional gradients.
std::vector<float> AdamWeights(uint32_t servers) {
  constexpr size_t kRows = 1500, kColumns = 1000;
  Cluster cluster(servers, 2);
  v1::TensorSpec spec;
  spec.set_id(7);
  spec.set_name("dense/weight");
  spec.add_shape(kRows);
  spec.add_shape(kColumns);
  spec.set_seed(3);
  spec.mutable_initializer()->mutable_he_normal();
  spec.mutable_optimizer()->mutable_adam()->set_learning_rate(0.01);
  auto work = [&](uint32_t worker, std::vector<float>* values) {
    auto client = Join(cluster.Options(worker), {spec});
    ASSERT_TRUE(client.ok()) << client.status();
    std::vector<float> gradient(kRows * kColumns);
    for (uint64_t step = 0; step < 3; ++step) {
      for (size_t i = 0; i < gradient.size(); ++i) {
        gradient[i] = std::sin(static_cast<float>(i % 1000 + 17 * worker + 31 * step));
      }
      const auto result = (*client)->PushPull(step, 1 + worker, {{7, gradient}}, {{7, absl::MakeSpan(*values)}}).Get();
      ASSERT_TRUE(result.ok()) << result.status();
    }
  };
  std::vector<float> first(kRows * kColumns), second(kRows * kColumns);
  std::thread other([&] { work(1, &second); });
  work(0, &first);
  other.join();
  EXPECT_EQ(first, second);
  return first;
}

TEST(ClusterTest, OneServerOrFiveGiveTheSameBits) {
  const std::vector<float> one = AdamWeights(1);
  EXPECT_NE(one[0], 0);
  EXPECT_EQ(one, AdamWeights(5));
}

// One server, two workers, "w" of 12 elements declared under job "cluster".
class SmallClusterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto client = Join(cluster_.Options(0), {Spec(1, "w", 12)});
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
    auto channel = grpc::CreateChannel(cluster_.server(0).address(), grpc::InsecureChannelCredentials());
    parameters_ = v1::ParameterService::NewStub(channel);
    coordinator_ = v1::CoordinatorService::NewStub(channel);
  }

  // Calls the generated stub, like a client in another language.
  template <typename Request, typename Response, typename Stub>
  static grpc::Status Call(Stub& stub, grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                           const Request& request) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(60)));
    Response response;
    return (stub.*method)(&context, request, &response);
  }

  grpc::Status Push(const v1::PushRequest& request) {
    return Call(*parameters_, &v1::ParameterService::Stub::Push, request);
  }
  grpc::Status Pull(const v1::PullRequest& request) {
    return Call(*parameters_, &v1::ParameterService::Stub::Pull, request);
  }

  // A gradient of worker 0 at step 0.
  static v1::PushRequest Gradient(size_t elements) {
    v1::PushRequest request;
    request.mutable_header()->set_job("cluster");
    request.mutable_header()->set_incarnation(1);
    request.mutable_header()->set_sequence(1);
    request.mutable_header()->set_examples(1);
    request.add_gradients()->set_tensor_id(1);
    request.mutable_gradients(0)->set_payload(std::string(4 * elements, 1));
    return request;
  }

  // Blocks until a pull waits on the server.
  void AwaitWaitingPull() {
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    while (cluster_.server(0).shard().status().waiting == 0 && absl::Now() < deadline) std::this_thread::yield();
    ASSERT_EQ(cluster_.server(0).shard().status().waiting, 1);
  }

  Cluster cluster_{1, 2};
  std::unique_ptr<Client> client_;
  std::unique_ptr<v1::ParameterService::Stub> parameters_;
  std::unique_ptr<v1::CoordinatorService::Stub> coordinator_;
};

TEST_F(SmallClusterTest, RefusesATensorDeclaredTwiceDifferently) {
  const absl::Status status = Join(cluster_.Options(1), {Spec(1, "w", 13)}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("tensor 1 \"w\" was declared before as \"w\" and differs"));
  EXPECT_TRUE(Join(cluster_.Options(1), {Spec(1, "w", 12)}).ok());
}

TEST_F(SmallClusterTest, RefusesAGradientOfTheWrongSizeAndChangesNothing) {
  const grpc::Status status = Push(Gradient(10));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(), "shard 0: gradient of \"w\" slice 0 has 10 elements, want 12");
  EXPECT_EQ(Push(Gradient(12)).error_message(), "");
  EXPECT_THAT(ballast::Pull(*client_, 1, 12), Each(100));
}

TEST_F(SmallClusterTest, RefusesAGradientThatIsNotFinite) {
  v1::PushRequest request = Gradient(12);
  const float nan = NAN;
  request.mutable_gradients(0)->mutable_payload()->replace(8, 4, reinterpret_cast<const char*>(&nan), 4);
  const grpc::Status status = Push(request);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("\"w\" slice 0 by worker 0 at step 0 has NaN or infinity"));
}

TEST_F(SmallClusterTest, RefusesAnotherJob) {
  v1::PushRequest request = Gradient(12);
  request.mutable_header()->set_job("other");
  const grpc::Status status = Push(request);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(status.error_message(), "shard 0: this server holds job \"cluster\", got \"other\"");
}

TEST_F(SmallClusterTest, RefusesAnotherPolicyOrNumberOfWorkers) {
  ClientOptions options = cluster_.Options(1);
  options.policy.mutable_async();
  absl::Status status = Join(options, {Spec(1, "w", 12)}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("was declared with policy sync"));
  options = cluster_.Options(1);
  options.workers = 3;
  status = Join(options, {Spec(1, "w", 12)}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("was declared with 2 workers, got 3"));
}

TEST_F(SmallClusterTest, RefusesAnotherProtocolVersion) {
  v1::DeclareTensorsRequest declare;
  declare.set_job("cluster");
  declare.set_protocol_version(99);
  grpc::Status status = Call(*parameters_, &v1::ParameterService::Stub::DeclareTensors, declare);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("got protocol version 99, want 1"));
  v1::JoinRequest join;
  join.set_protocol_version(99);
  join.set_version("9.9");
  join.set_description("somehost, process 5");
  join.set_role(v1::ROLE_WORKER);
  status = Call(*coordinator_, &v1::CoordinatorService::Stub::Join, join);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(),
              HasSubstr("somehost, process 5 speaks protocol version 99 (ballast 9.9), want 1"));
}

TEST_F(SmallClusterTest, RefusesAnUnknownTensor) {
  v1::PullRequest pull;
  pull.set_job("cluster");
  pull.add_slices()->set_tensor_id(8);
  const grpc::Status status = Pull(pull);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(status.error_message(), "shard 0: tensor 8 is not declared");
  v1::PushRequest push = Gradient(12);
  push.mutable_gradients(0)->set_slice_index(4);
  EXPECT_EQ(Push(push).error_message(), "shard 0: does not own slice 4 of \"w\"");
}

TEST_F(SmallClusterTest, PullThatTimesOutNamesTheMissingWorker) {
  ClientOptions options = cluster_.Options(0);
  options.wait_timeout = absl::Milliseconds(50);
  auto client = Client::Connect(options);
  ASSERT_TRUE(client.ok()) << client.status();
  std::vector<float> gradient(12, 1), values(12);
  const absl::Status status = (*client)->PushPull(0, 1, {{1, gradient}}, {{1, absl::MakeSpan(values)}}).Get().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("pull of \"w\" slice 0 at step 1 waits for the gradient of worker 1"));
}

TEST_F(SmallClusterTest, DrainEndsAPullThatWaitsAndNamesTheServer) {
  ClientOptions options = cluster_.Options(0);
  options.retry_timeout = absl::ZeroDuration();
  auto client = Client::Connect(options);
  ASSERT_TRUE(client.ok()) << client.status();
  std::vector<float> values(12);
  const auto pull = (*client)->Pull(1, {{1, absl::MakeSpan(values)}});
  ASSERT_NO_FATAL_FAILURE(AwaitWaitingPull());
  const absl::Time start = absl::Now();
  cluster_.server(0).Drain(absl::Seconds(30));
  const absl::Status status = pull.Get().status();
  // The pull's own timeout is 60 s, that of the drain 30 s.
  EXPECT_LT(absl::Now() - start, absl::Seconds(25));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(absl::StrCat("server 0 at ", cluster_.server(0).address(), " is shutting down")));
}

}  // namespace
}  // namespace ballast
