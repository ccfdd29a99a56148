// SPDX-License-Identifier: Apache-2.0
#include "client/client.h"

#include <memory>

#include "client/testing/fake_coordinator_service.h"
#include "client/testing/fake_parameter_service.h"
#include "client/testing/fake_server.h"
#include "common/rpc/grpc_status.h"
#include "common/status/error_reason.h"
#include "common/tensors/tensor_spec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::MatchesRegex;

v1::TensorSpec Spec(uint32_t id, const std::string& name, int64_t elements) {
  v1::TensorSpec spec;
  spec.set_id(id);
  spec.set_name(name);
  spec.add_shape(elements);
  spec.mutable_optimizer()->mutable_sgd()->set_learning_rate(1.0f);
  return spec;
}

// Two shards, and a client that knows their addresses.
class ClientTest : public testing::Test {
 protected:
  ClientTest() : server0_(&shard0_), server1_(&shard1_) {
    options_.shards = {server0_.address(), server1_.address()};
    options_.job = "test";
    options_.policy.mutable_async();
    options_.retry_timeout = options_.rpc_timeout = absl::Seconds(60);
  }

  // "w" of 4 elements on shard 0, "v" of 2 on shard 1.
  std::unique_ptr<Client> Ready() {
    auto client = Client::Connect(options_);
    EXPECT_TRUE(client.ok()) << client.status();
    const absl::Status declared = (*client)->Declare({Spec(1, "w", 4), Spec(2, "v", 2)});
    EXPECT_TRUE(declared.ok()) << declared;
    return *std::move(client);
  }

  FakeParameterService shard0_, shard1_;
  FakeServer server0_, server1_;
  ClientOptions options_;
  std::vector<float> g4_ = {1, 2, 3, 4}, g2_ = {5, 6}, w_ = {9, 9, 9, 9}, v_ = {9, 9};
};

TEST_F(ClientTest, PullGivesWhatPushesChanged) {
  auto client = Ready();
  const auto pushed = client->Push(0, 8, {{1, g4_}, {2, g2_}}).Get();
  ASSERT_TRUE(pushed.ok()) << pushed.status();
  EXPECT_EQ(pushed->applied, 2);
  EXPECT_EQ(pushed->learning_rate, 1.0f);
  EXPECT_GT(pushed->bytes_sent, 24);
  const auto pulled = client->Pull(1, {{2, absl::MakeSpan(v_)}, {1, absl::MakeSpan(w_)}}).Get();
  ASSERT_TRUE(pulled.ok()) << pulled.status();
  EXPECT_THAT(w_, ElementsAre(-1, -2, -3, -4));
  EXPECT_THAT(v_, ElementsAre(-5, -6));
}

TEST_F(ClientTest, PushPullDoesBothInOneMessage) {
  auto client = Ready();
  const auto result = client->PushPull(3, 8, {{1, g4_}}, {{1, absl::MakeSpan(w_)}}).Get();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(w_, ElementsAre(-1, -2, -3, -4));
  EXPECT_THAT(shard0_.sequences(), ElementsAre(1));
  EXPECT_EQ(shard0_.last_header().step(), 3);
  EXPECT_EQ(shard0_.last_header().examples(), 8);
  EXPECT_EQ(shard0_.last_header().job(), "test");
}

// The bytes are 1, 2, 3, 4 and -1, -2, -3, -4 in bf16.
TEST_F(ClientTest, EncodedGradientsAndValuesTravelAsTheyAre) {
  options_.codec.set_gradients(v1::ENCODING_BF16);
  options_.codec.set_values(v1::ENCODING_BF16);
  auto client = Ready();
  const char gradient[] = "\x80\x3f\x00\x40\x40\x40\x80\x40";
  char values[8];
  const auto result = client
                          ->PushPull(0, 8, {{1, {}, {v1::ENCODING_BF16, {gradient, 8}}}, {2, g2_}},
                                     {{1, {}, {v1::ENCODING_BF16, values}}, {2, absl::MakeSpan(v_)}})
                          .Get();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(std::string(values, 8), std::string("\x80\xbf\x00\xc0\x40\xc0\x80\xc0", 8));
  EXPECT_THAT(v_, ElementsAre(-5, -6));
  EXPECT_EQ(shard0_.payload_bytes(), 8u);
}

TEST_F(ClientTest, RefusesWhatIsEncodedOtherwiseThanItsCodecSays) {
  options_.codec.set_gradients(v1::ENCODING_BF16);
  auto client = Ready();
  char bytes[8] = {};
  EXPECT_EQ(client->Push(0, 8, {{1, {}, {v1::ENCODING_FP16, bytes}}}).Get().status(),
            absl::InvalidArgumentError("gradient of \"w\" is fp16, want floats, or bf16 or fp16 if that is the "
                                       "client's codec, which is bf16"));
  EXPECT_EQ(client->Pull(0, {{1, {}, {v1::ENCODING_BF16, bytes}}}).Get().status(),
            absl::InvalidArgumentError("memory for the values of \"w\" is bf16, want floats, or bf16 or fp16 if that "
                                       "is the client's codec, which is fp32"));
  EXPECT_EQ(client->Push(0, 8, {{1, {}, {v1::ENCODING_BF16, {bytes, 7}}}}).Get().status(),
            absl::InvalidArgumentError("gradient of \"w\", encoded, has 7 bytes, want 8"));
  EXPECT_EQ(client->Push(0, 8, {{1, g4_, {v1::ENCODING_BF16, bytes}}}).Get().status(),
            absl::InvalidArgumentError("gradient of \"w\" is given both as floats and encoded, want one of them"));
}

// Elements of int8 share a scale, so a caller cannot encode parts of a tensor.
TEST_F(ClientTest, RefusesEncodedElementsOfAnotherSizeThan16Bits) {
  options_.codec.set_gradients(v1::ENCODING_INT8);
  auto client = Ready();
  const char bytes[8] = {};
  EXPECT_EQ(client->Push(0, 8, {{1, {}, {v1::ENCODING_INT8, bytes}}}).Get().status(),
            absl::InvalidArgumentError("gradient of \"w\" is int8, want floats, or bf16 or fp16 if that is the "
                                       "client's codec, which is int8"));
}

TEST_F(ClientTest, SaysWhenAnswersBeganAndEnded) {
  for (bool watch : {false, true}) {
    options_.watch_answers = watch;
    auto client = Ready();
    const absl::Time before = absl::Now();
    const auto result =
        client->PushPull(0, 8, {{1, g4_}, {2, g2_}}, {{1, absl::MakeSpan(w_)}, {2, absl::MakeSpan(v_)}}).Get();
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_LE(before, result->answers.first);
    EXPECT_LE(result->answers.first, result->answers.last);
    EXPECT_LE(result->answers.last, result->answers.end);
    EXPECT_LE(result->answers.end, absl::Now());
    const auto pulled = client->Pull(0, {{1, absl::MakeSpan(w_)}}).Get();
    ASSERT_TRUE(pulled.ok()) << pulled.status();
    EXPECT_LE(result->answers.end, pulled->answers.first);
    EXPECT_LE(pulled->answers.first, pulled->answers.end);
    // Only a watched response has a start before its end.
    EXPECT_EQ(pulled->answers.first < pulled->answers.end, watch);
  }
}

TEST_F(ClientTest, WatchedCallsAreTriedAgainAsOthersAre) {
  options_.watch_answers = true;
  auto client = Ready();
  shard0_.FailNext(2, grpc::Status(grpc::StatusCode::UNAVAILABLE, "away"));
  const auto pushed = client->Push(0, 8, {{1, g4_}}).Get();
  ASSERT_TRUE(pushed.ok()) << pushed.status();
  EXPECT_EQ(pushed->retries, 2);
  EXPECT_LE(pushed->answers.first, pushed->answers.end);
}

TEST_F(ClientTest, ManySmallTensorsTravelInOneMessage) {
  auto client = Client::Connect(options_);
  ASSERT_TRUE(client.ok()) << client.status();
  std::vector<v1::TensorSpec> specs;
  std::vector<TensorGradient> gradients;
  for (uint32_t id = 0; id < 200; ++id) {
    specs.push_back(Spec(id, absl::StrCat("t", id), 4));
    gradients.push_back({id, g4_});
  }
  ASSERT_TRUE((*client)->Declare(specs).ok());
  EXPECT_EQ((*client)->Push(0, 1, gradients).Get()->applied, 200);
  EXPECT_EQ(shard0_.sequences().size(), 1);
  EXPECT_EQ(shard1_.sequences().size(), 1);
}

TEST_F(ClientTest, LargeTensorTravelsInMessagesWithinTheLimit) {
  auto client = Client::Connect(options_);
  ASSERT_TRUE(client.ok()) << client.status();
  const size_t elements = 4 * kMaxSliceElements + 5;
  ASSERT_TRUE((*client)->Declare({Spec(1, "large", elements)}).ok());
  std::vector<float> gradient(elements), values(elements);
  for (size_t i = 0; i < elements; ++i) gradient[i] = i % 1000;
  const auto result = (*client)->PushPull(0, 1, {{1, gradient}}, {{1, absl::MakeSpan(values)}}).Get();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->applied, 5);
  EXPECT_LE(shard0_.largest_message(), 4194304);
  EXPECT_EQ(shard0_.sequences().size() + shard1_.sequences().size(), 5);
  size_t wrong = 0;
  for (size_t i = 0; i < elements; ++i) wrong += values[i] != -gradient[i];
  EXPECT_EQ(wrong, 0);
}

TEST_F(ClientTest, GradientCarriesTheVersionLastPulled) {
  auto client = Ready();
  ASSERT_TRUE(client->Push(0, 1, {{1, g4_}}).Get().ok());
  ASSERT_TRUE(client->Push(1, 1, {{1, g4_}}).Get().ok());
  ASSERT_TRUE(client->Pull(2, {{1, absl::MakeSpan(w_)}}).Get().ok());
  ASSERT_TRUE(client->Push(2, 1, {{1, g4_}}).Get().ok());
  EXPECT_THAT(shard0_.versions_sent(), ElementsAre(0, 0, 2));
}

TEST_F(ClientTest, PushWithoutExamplesSendsNoPayload) {
  auto client = Ready();
  ASSERT_TRUE(client->PushPull(0, 0, {{1, {}}}, {{1, absl::MakeSpan(w_)}}).Get().ok());
  EXPECT_EQ(shard0_.last_header().examples(), 0);
  EXPECT_THAT(w_, ElementsAre(0, 0, 0, 0));
}

TEST_F(ClientTest, RetriesWithTheSameSequenceNumber) {
  auto client = Ready();
  shard0_.FailNext(2, grpc::Status(grpc::StatusCode::UNAVAILABLE, "restarting"));
  const auto result = client->Push(0, 1, {{1, g4_}}).Get();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->retries, 2);
  EXPECT_THAT(shard0_.sequences(), ElementsAre(1, 1, 1));
}

TEST_F(ClientTest, ReportsNoStepAsFinishedForValuesThatItSet) {
  options_.durability.set_mode(v1::Durability::WAL);
  auto client = Ready();
  ASSERT_TRUE(client->SetValues({{1, g4_}}).Get().ok());
  ASSERT_TRUE(client->Pull(0, {{1, absl::MakeSpan(w_)}}).Get().ok());
  shard0_.FailNext(1, grpc::Status(grpc::StatusCode::UNAVAILABLE, "restarting"));
  ASSERT_TRUE(client->Push(0, 1, {{1, g4_}}).Get().ok());
  const v1::ReportVersionsRequest report = shard0_.AwaitReport();
  ASSERT_EQ(report.slices_size(), 1);
  EXPECT_EQ(report.slices(0).version(), 1);
  EXPECT_EQ(report.slices(0).finished_steps(), 0) << "the shard would drop the gradient of step 0";
}

TEST_F(ClientTest, SaysThatAPushHadBeenTakenBefore) {
  auto client = Ready();
  EXPECT_FALSE(client->Push(0, 1, {{1, g4_}, {2, g2_}}).Get()->duplicate);
  shard1_.AnswerAsDuplicates();
  EXPECT_TRUE(client->Push(1, 1, {{1, g4_}, {2, g2_}}).Get()->duplicate);
}

TEST_F(ClientTest, IncarnationIsTheTimeOfTheStartUnlessOneIsGiven) {
  const uint64_t before = absl::ToUnixMicros(absl::Now());
  auto client = Ready();
  ASSERT_TRUE(client->Push(0, 1, {{1, g4_}}).Get().ok());
  EXPECT_GE(shard0_.last_header().incarnation(), before);
  EXPECT_LE(shard0_.last_header().incarnation(), absl::ToUnixMicros(absl::Now()));
  options_.incarnation = 7;
  client = Ready();
  ASSERT_TRUE(client->Push(0, 1, {{1, g4_}}).Get().ok());
  EXPECT_EQ(shard0_.last_header().incarnation(), 7);
}

TEST_F(ClientTest, GivingUpNamesShardAttemptsAndCause) {
  options_.retry_timeout = absl::Milliseconds(300);
  auto client = Ready();
  shard1_.FailNext(1000000, grpc::Status(grpc::StatusCode::UNAVAILABLE, "draining"));
  const absl::Status status = client->Push(0, 1, {{2, g2_}}).Get().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(
      std::string(status.message()),
      MatchesRegex("shard 1 at 127.0.0.1:[0-9]+: push: gave up after [0-9.]+m?s and [0-9]+ attempts: draining"));
}

TEST_F(ClientTest, DeadlineOfTheServersOwnWaitIsPassedOn) {
  auto client = Ready();
  shard0_.FailNext(1, grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, "waited 60s for worker 1"));
  const absl::Status status = client->Pull(1, {{1, absl::MakeSpan(w_)}}).Get().status();
  EXPECT_EQ(status, absl::DeadlineExceededError(
                        absl::StrCat("shard 0 at ", server0_.address(), ": pull: waited 60s for worker 1")));
}

TEST_F(ClientTest, PayloadOfWrongSizeIsAnErrorAndChangesNothing) {
  auto client = Ready();
  shard0_.SpoilAnswers();
  const absl::Status status = client->Pull(0, {{1, absl::MakeSpan(w_)}}).Get().status();
  EXPECT_EQ(status,
            absl::InternalError(absl::StrCat("shard 0 at ", server0_.address(),
                                             ": pull: response: tensor 1 slice 0 has 15 bytes of fp32, want 16")));
  EXPECT_THAT(w_, ElementsAre(9, 9, 9, 9));
}

TEST_F(ClientTest, FailureOnOneShardEndsTheWaitOnAnother) {
  auto client = Ready();
  shard0_.Block();
  auto pull = client->Pull(0, {{1, absl::MakeSpan(w_)}});
  ASSERT_TRUE(shard0_.AwaitBlocked(1));
  EXPECT_FALSE(pull.Ready());
  shard1_.FailNext(1, grpc::Status(grpc::StatusCode::NOT_FOUND, "no such tensor"));
  const absl::Status status = client->Pull(0, {{1, absl::MakeSpan(w_)}, {2, absl::MakeSpan(v_)}}).Get().status();
  EXPECT_EQ(status, absl::NotFoundError(absl::StrCat("shard 1 at ", server1_.address(), ": pull: no such tensor")));
  EXPECT_FALSE(pull.Ready());
  shard0_.Release();
  EXPECT_TRUE(pull.Get().ok());
}

TEST_F(ClientTest, ShutdownEndsWaitsWithItsReason) {
  auto client = Ready();
  shard0_.Block();
  auto pull = client->Pull(0, {{1, absl::MakeSpan(w_)}});
  ASSERT_TRUE(shard0_.AwaitBlocked(1));
  client->Shutdown("worker 3 was lost");
  EXPECT_EQ(pull.Get().status(), absl::CancelledError(absl::StrCat("shard 0 at ", server0_.address(),
                                                                   ": pull: cancelled: worker 3 was lost")));
  EXPECT_EQ(client->Push(0, 1, {{2, g2_}}).Get().status().code(), absl::StatusCode::kCancelled);
  shard0_.Release();
}

// The responses are large, so that some are being decoded at the moment of the shutdown.
TEST_F(ClientTest, AnIdleClientWritesIntoNobodysMemory) {
  std::vector<float> values(1 << 21);
  for (int round = 0; round < 20; ++round) {
    auto client = Client::Connect(options_);
    ASSERT_TRUE(client.ok()) << client.status();
    ASSERT_TRUE((*client)->Declare({Spec(3, "large", values.size())}).ok());
    std::vector<Future<PullResult>> pulls;
    for (int i = 0; i < 4; ++i) pulls.push_back((*client)->Pull(0, {{3, absl::MakeSpan(values)}}));
    absl::SleepFor(round * absl::Milliseconds(1));
    (*client)->Shutdown("test");
    (*client)->WaitUntilIdle();
    for (const auto& pull : pulls) EXPECT_TRUE(pull.Ready()) << "round " << round;
  }
}

TEST_F(ClientTest, DestructionEndsWaits) {
  auto client = Ready();
  shard0_.Block();
  shard1_.Block();
  auto pull = client->Pull(0, {{1, absl::MakeSpan(w_)}, {2, absl::MakeSpan(v_)}});
  ASSERT_TRUE(shard0_.AwaitBlocked(1));
  ASSERT_TRUE(shard1_.AwaitBlocked(1));
  client.reset();
  EXPECT_TRUE(pull.Ready());
  EXPECT_EQ(pull.Get().status().code(), absl::StatusCode::kCancelled);
  shard0_.Release();
  shard1_.Release();
}

TEST_F(ClientTest, RefusesGradientOfWrongSize) {
  auto client = Ready();
  EXPECT_EQ(client->Push(0, 1, {{1, g2_}}).Get().status(),
            absl::InvalidArgumentError("gradient of \"w\" has 2 elements, want 4"));
  EXPECT_EQ(client->Pull(0, {{1, absl::MakeSpan(v_)}}).Get().status(),
            absl::InvalidArgumentError("memory for the values of \"w\" has 2 elements, want 4"));
  EXPECT_TRUE(shard0_.sequences().empty());
}

TEST_F(ClientTest, RefusesUnknownAndRepeatedAndMismatchedTensors) {
  auto client = Ready();
  EXPECT_EQ(client->Push(0, 1, {{7, g2_}}).Get().status(), absl::InvalidArgumentError("tensor 7 was not declared"));
  EXPECT_EQ(client->Push(0, 1, {{2, g2_}, {2, g2_}}).Get().status(),
            absl::InvalidArgumentError("tensor \"v\" is given twice"));
  EXPECT_EQ(
      client->PushPull(0, 1, {{1, g4_}}, {{2, absl::MakeSpan(v_)}}).Get().status(),
      absl::InvalidArgumentError("push-pull: got values of tensor 2 with the gradient of tensor 1, want the same"));
  EXPECT_EQ(client->PushPull(0, 1, {{1, g4_}}, {}).Get().status(),
            absl::InvalidArgumentError("push-pull: got 1 gradients and 0 tensors of values, want the same tensors"));
}

TEST_F(ClientTest, DeclaresToEachShardTheSlicesItOwns) {
  auto client = Ready();
  ASSERT_EQ(shard0_.declarations().size(), 1);
  const v1::DeclareTensorsRequest declared = shard0_.declarations()[0];
  EXPECT_EQ(declared.job(), "test");
  EXPECT_EQ(declared.protocol_version(), 1);
  EXPECT_TRUE(declared.policy().has_async());
  ASSERT_EQ(declared.tensors_size(), 1);
  EXPECT_EQ(declared.tensors(0).spec().name(), "w");
  ASSERT_EQ(declared.tensors(0).slices_size(), 1);
  EXPECT_EQ(declared.tensors(0).slices(0).elements(), 4);
  EXPECT_EQ(shard1_.declarations()[0].tensors(0).spec().name(), "v");
}

TEST_F(ClientTest, TellsAShardWithoutSlicesOfTheJob) {
  auto client = Client::Connect(options_);
  ASSERT_TRUE(client.ok()) << client.status();
  ASSERT_TRUE((*client)->Declare({Spec(1, "w", 4)}).ok());
  ASSERT_EQ(shard1_.declarations().size(), 1);
  const v1::DeclareTensorsRequest declared = shard1_.declarations()[0];
  EXPECT_EQ(declared.job(), "test");
  EXPECT_TRUE(declared.policy().has_async());
  EXPECT_EQ(declared.workers(), options_.workers);
  EXPECT_EQ(declared.tensors_size(), 0);
}

TEST_F(ClientTest, RefusesToDeclareATensorDifferently) {
  auto client = Ready();
  EXPECT_TRUE(client->Declare({Spec(1, "w", 4)}).ok());
  const absl::Status status = client->Declare({Spec(1, "w", 5)});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"w\""));
}

TEST_F(ClientTest, RefusesToDeclareWithoutPolicy) {
  options_.policy.Clear();
  auto client = Client::Connect(options_);
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_EQ((*client)->Declare({Spec(1, "w", 4)}),
            absl::InvalidArgumentError("policy: got nothing, want sync, async, bounded or local_sgd"));
}

TEST_F(ClientTest, ReportsEveryShardsStatus) {
  auto client = Ready();
  ASSERT_TRUE(client->Push(0, 1, {{2, g2_}}).Get().ok());
  const auto statuses = client->GetStatus();
  ASSERT_TRUE(statuses.ok()) << statuses.status();
  ASSERT_EQ(statuses->size(), 2);
  EXPECT_EQ((*statuses)[0].pushes(), 0);
  EXPECT_EQ((*statuses)[1].pushes(), 1);
}

TEST_F(ClientTest, ConnectGivesUpNamingTheAddressAndHowLong) {
  server1_.Stop();
  options_.connect_timeout = absl::Milliseconds(300);
  const absl::Status status = Client::Connect(options_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("shard 1 at ", server1_.address(), ": status: ")));
  EXPECT_THAT(std::string(status.message()), MatchesRegex(".*gave up after [0-9.]+m?s and [0-9]+ attempts?: .*"));
}

TEST_F(ClientTest, RefusesOptionsOutOfTheirRange) {
  ClientOptions options = options_;
  options.worker = 1;
  EXPECT_EQ(Client::Connect(options).status(),
            absl::InvalidArgumentError("worker: got 1, want less than the job's 1 workers"));
  options = options_;
  options.coordinator = "localhost:1";
  EXPECT_EQ(Client::Connect(options).status().code(), absl::StatusCode::kInvalidArgument);
  options = options_;
  options.wait_timeout = absl::Hours(1);
  EXPECT_EQ(Client::Connect(options).status(), absl::InvalidArgumentError("wait_timeout: got 1h, want 1ms to 10m"));
  options = options_;
  options.job = "Not a name";
  EXPECT_EQ(Client::Connect(options).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ClientTest, CoordinatorTellsWhereTensorsAre) {
  FakeCoordinatorService coordinator(options_.shards);
  FakeServer coordinator_server(&coordinator);
  options_.shards.clear();
  options_.coordinator = coordinator_server.address();
  auto client = Ready();
  ASSERT_TRUE(client->Push(0, 1, {{1, g4_}}).Get().ok());
  EXPECT_EQ(client->shard_map().shards().size(), 2);
  // A client that connects later needs no declaration.
  auto reader = Client::Connect(options_);
  ASSERT_TRUE(reader.ok()) << reader.status();
  ASSERT_TRUE((*reader)->Pull(0, {{1, absl::MakeSpan(w_)}}).Get().ok());
  EXPECT_THAT(w_, ElementsAre(-1, -2, -3, -4));
}

TEST_F(ClientTest, AsksForANewerMapWhenAShardDoesNotOwnASliceAndSendsTheSameAgain) {
  FakeCoordinatorService coordinator(options_.shards);
  FakeServer coordinator_server(&coordinator);
  options_.shards.clear();
  options_.coordinator = coordinator_server.address();
  auto client = Ready();
  const uint64_t epoch = client->shard_map().epoch();
  ASSERT_GT(epoch, 0);
  // Another client places a tensor, so the epoch grows.
  ASSERT_TRUE((*Client::Connect(options_))->Declare({Spec(3, "u", 4)}).ok());
  const grpc::Status not_owner =
      ToGrpcStatus(WithReason(v1::ERROR_REASON_NOT_OWNER, absl::FailedPreconditionError("slice 0 is not here")));
  shard0_.FailNext(1, not_owner);
  const auto result = client->Push(0, 1, {{1, g4_}}).Get();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->retries, 1);
  EXPECT_THAT(shard0_.sequences(), ElementsAre(1, 1));
  // The new map arrives in the background.
  for (int step = 1; shard0_.last_header().map_epoch() == epoch && step < 1000; ++step) {
    ASSERT_TRUE(client->Push(step, 1, {{1, g4_}}).Get().ok());
  }
  EXPECT_EQ(shard0_.last_header().map_epoch(), epoch + 1);
}

TEST_F(ClientTest, GivesUpWhereNoMapKnowsTheOwner) {
  auto client = Ready();
  shard0_.FailNext(
      100, ToGrpcStatus(WithReason(v1::ERROR_REASON_NOT_OWNER, absl::FailedPreconditionError("slice 0 is not here"))));
  const absl::Status status = client->Push(0, 1, {{1, g4_}}).Get().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(status), v1::ERROR_REASON_NOT_OWNER);
  EXPECT_LT(shard0_.sequences().size(), 10);
}

// A job with standbys: the coordinator knows the shards' addresses, and a third server is there for a shard to move to.
class ClientFollowTest : public ClientTest {
 protected:
  ClientFollowTest() : coordinator_(options_.shards), coordinator_server_(&coordinator_), standby_server_(&standby_) {
    options_.shards.clear();
    options_.coordinator = coordinator_server_.address();
    options_.durability.set_mode(v1::Durability::STANDBY);
  }

  FakeCoordinatorService coordinator_;
  FakeServer coordinator_server_;
  FakeParameterService standby_;
  FakeServer standby_server_;
};

TEST_F(ClientFollowTest, PushOnItsWayToAFrozenShardGoesToWhereTheShardIsNow) {
  auto client = Ready();
  ASSERT_TRUE(client->Push(0, 1, {{1, g4_}, {2, g2_}}).Get().ok());
  shard0_.Block({2});
  auto push = client->Push(1, 1, {{1, g4_}, {2, g2_}});
  ASSERT_TRUE(shard0_.AwaitPushes(2));
  coordinator_.MoveShard(0, standby_server_.address());
  ASSERT_TRUE(push.Get().ok()) << push.Get().status();
  EXPECT_THAT(standby_.sequences(), ElementsAre(2));
  EXPECT_THAT(shard1_.sequences(), ElementsAre(1, 2));
  EXPECT_THAT(client->acknowledged_pushes(), ElementsAre(2, 2));
  EXPECT_EQ(client->shard_map().shards()[0], standby_server_.address());
  shard0_.Release();
}

TEST_F(ClientFollowTest, PushToADeadShardGoesToWhereItIsNow) {
  auto client = Ready();
  server1_.Stop();
  auto push = client->Push(0, 1, {{1, g4_}, {2, g2_}});
  coordinator_.MoveShard(1, standby_server_.address());
  ASSERT_TRUE(push.Get().ok()) << push.Get().status();
  EXPECT_THAT(standby_.sequences(), ElementsAre(1));
}

TEST_F(ClientFollowTest, FollowsAgainWhenTheCoordinatorIsBack) {
  auto client = Ready();
  shard0_.Block({1});
  auto push = client->Push(0, 1, {{1, g4_}});
  ASSERT_TRUE(shard0_.AwaitPushes(1));
  coordinator_.FailMaps(grpc::Status(grpc::StatusCode::UNAVAILABLE, "restarting"));
  ASSERT_TRUE(coordinator_.AwaitMapCalls(4));
  coordinator_.MoveShard(0, standby_server_.address());
  coordinator_.FailMaps(grpc::Status::OK);
  ASSERT_TRUE(push.Get().ok()) << push.Get().status();
  EXPECT_THAT(standby_.sequences(), ElementsAre(1));
  shard0_.Release();
}

TEST_F(ClientFollowTest, DeclaringAgainAfterAMoveIsNoError) {
  auto client = Ready();
  coordinator_.MoveShard(0, standby_server_.address());
  const absl::Status declared = client->Declare({Spec(1, "w", 4), Spec(2, "v", 2)});
  EXPECT_TRUE(declared.ok()) << declared;
  EXPECT_EQ(client->shard_map().shards()[0], standby_server_.address());
}

TEST_F(ClientFollowTest, AddressThatItMayNotSpeakToEndsItsCallsAndSaysWhy) {
  auto client = Ready();
  shard0_.Block({1});
  auto push = client->Push(0, 1, {{1, g4_}});
  ASSERT_TRUE(shard0_.AwaitPushes(1));
  // An address on another machine, without TLS.
  coordinator_.MoveShard(0, "192.0.2.1:7700");
  const absl::Status status = push.Get().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  EXPECT_THAT(std::string(status.message()), HasSubstr("192.0.2.1:7700"));
  shard0_.Release();
}

TEST_F(ClientFollowTest, DestructionEndsTheWaitForANewerMap) {
  auto client = Ready();
  // Call 1 gets the first map; call 2 waits for the next.
  ASSERT_TRUE(coordinator_.AwaitMapCalls(2));
  const absl::Time begun = absl::Now();
  client.reset();
  EXPECT_LT(absl::Now() - begun, absl::Seconds(10));
}

TEST_F(ClientFollowTest, ClientThatDeclaresNothingEndsToo) {
  auto client = Client::Connect(options_);
  ASSERT_TRUE(client.ok()) << client.status();
  const absl::Time begun = absl::Now();
  client->reset();
  EXPECT_LT(absl::Now() - begun, absl::Seconds(10));
}

TEST_F(ClientFollowTest, WhereServersComeBackToTheirPlaceAnotherAddressIsAnError) {
  options_.durability.set_mode(v1::Durability::WAL);
  auto client = Ready();
  coordinator_.MoveShard(0, standby_server_.address());
  const absl::Status moved = client->Declare({Spec(1, "w", 4)});
  EXPECT_EQ(moved.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(moved.message(), "shard map: the shards' addresses have changed since they were first seen");
}

}  // namespace
}  // namespace ballast
