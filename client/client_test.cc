// SPDX-License-Identifier: Apache-2.0
#include "client/client.h"

#include <memory>

#include "client/testing/fake_coordinator_service.h"
#include "client/testing/fake_parameter_service.h"
#include "client/testing/fake_server.h"
#include "common/rpc/grpc_status.h"
#include "common/status/error_reason.h"
#include "common/tensors/tensor_spec.h"
#include "common/tensors/tensor_spec_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using testing::ElementsAre;
using testing::MatchesRegex;

grpc::Status NotOwner() {
  return ToGrpcStatus(WithReason(v1::ERROR_REASON_NOT_OWNER, absl::FailedPreconditionError("slice 0 is not here")));
}

grpc::Status Unavailable(const std::string& message) { return grpc::Status(grpc::StatusCode::UNAVAILABLE, message); }

// A coordinator of the shards in the options, which then name it instead.
struct Coordinator : FakeCoordinatorService {
  explicit Coordinator(ClientOptions& options) : FakeCoordinatorService(options.shards) {
    options.shards.clear();
    options.coordinator = server.address();
  }
  FakeServer server{this};
};

// Two shards, and a client that knows their addresses.
class ClientTest : public testing::Test {
 protected:
  ClientTest() {
    options_.shards = {server0_.address(), server1_.address()};
    options_.job = "test";
    options_.policy.mutable_async();
    options_.retry_timeout = options_.rpc_timeout = absl::Seconds(60);
  }

  ~ClientTest() override {
    shard0_.Release();
    shard1_.Release();
  }

  std::unique_ptr<Client> Connected(const std::vector<v1::TensorSpec>& specs = {}) {
    auto client = Client::Connect(options_);
    EXPECT_TRUE(client.ok()) << client.status();
    const absl::Status declared = specs.empty() ? absl::OkStatus() : (*client)->Declare(specs);
    EXPECT_TRUE(declared.ok()) << declared;
    return *std::move(client);
  }

  // Connects at the first call. "w" of 4 elements is on shard 0, "v" of 2 on shard 1.
  Client& client() {
    if (client_ == nullptr) client_ = Connected({SgdSpec(1, "w", 4), SgdSpec(2, "v", 2)});
    return *client_;
  }

  // Waits for a result that is no error.
  template <typename Result>
  static Result Done(const Future<Result>& future) {
    EXPECT_TRUE(future.Get().ok()) << future.Get().status();
    return future.Get().value();
  }

  // Returns "OK", or the code and the message of the error.
  template <typename Result>
  static std::string Outcome(const Future<Result>& future) {
    return future.Get().status().ToString();
  }

  // Returns a push of "w", the shard's first, once the shard withholds the response.
  Future<PushResult> BlockedPush() {
    shard0_.Block({1});
    Future<PushResult> push = client().Push(0, 1, {push_w_});
    EXPECT_TRUE(shard0_.AwaitPushes(1));
    return push;
  }

  // Returns a pull of "w", once the shard withholds the response.
  Future<PullResult> BlockedPull() {
    shard0_.Block();
    Future<PullResult> pull = client().Pull(0, {pull_w_});
    EXPECT_TRUE(shard0_.AwaitBlocked(1));
    return pull;
  }

  FakeParameterService shard0_, shard1_;
  FakeServer server0_{&shard0_}, server1_{&shard1_};
  ClientOptions options_;
  std::vector<float> g4_ = {1, 2, 3, 4}, g2_ = {5, 6}, w_ = {9, 9, 9, 9}, v_ = {9, 9};
  const TensorGradient push_w_ = {1, g4_}, push_v_ = {2, g2_};
  const TensorValues pull_w_ = {1, absl::MakeSpan(w_)}, pull_v_ = {2, absl::MakeSpan(v_)};
  std::unique_ptr<Client> client_;
};

TEST_F(ClientTest, PullGivesWhatPushesChanged) {
  const auto pushed = Done(client().Push(0, 8, {push_w_, push_v_}));
  EXPECT_EQ(pushed.applied, 2);
  EXPECT_EQ(pushed.learning_rate, 1.0f);
  EXPECT_GT(pushed.bytes_sent, 24);
  Done(client().Pull(1, {pull_v_, pull_w_}));
  EXPECT_THAT(w_, ElementsAre(-1, -2, -3, -4));
  EXPECT_THAT(v_, ElementsAre(-5, -6));
}

TEST_F(ClientTest, PushPullDoesBothInOneMessage) {
  Done(client().PushPull(3, 8, {push_w_}, {pull_w_}));
  EXPECT_THAT(w_, ElementsAre(-1, -2, -3, -4));
  EXPECT_THAT(shard0_.sequences(), ElementsAre(1));
  EXPECT_EQ(shard0_.last_header().step(), 3);
  EXPECT_EQ(shard0_.last_header().examples(), 8);
  EXPECT_EQ(shard0_.last_header().job(), "test");
}

TEST_F(ClientTest, SaysWhichValuesAreInPlaceBeforeAllAre) {
  TensorValues pull_w = pull_w_, pull_v = pull_v_;
  pull_w.arrived = std::make_shared<ArrivedElements>();
  pull_v.arrived = std::make_shared<ArrivedElements>();
  client();
  shard1_.Block();
  const Future<PullResult> pulled = client().Pull(0, {pull_w, pull_v});
  const auto part = pull_w.arrived->Take(absl::Minutes(1));
  ASSERT_TRUE(part.has_value());
  EXPECT_EQ(part->offset, 0u);
  EXPECT_EQ(part->elements, 4u);
  EXPECT_THAT(w_, ElementsAre(0, 0, 0, 0));
  EXPECT_FALSE(pull_v.arrived->Take(absl::ZeroDuration()).has_value());
  EXPECT_FALSE(pulled.WaitFor(absl::ZeroDuration()));
  shard1_.Release();
  Done(pulled);
  EXPECT_EQ(pull_v.arrived->Take(absl::ZeroDuration())->elements, 2u);
  EXPECT_FALSE(pull_w.arrived->Take(absl::ZeroDuration()).has_value());
}

// The bytes are 1, 2, 3, 4 and -1, -2, -3, -4 in bf16.
TEST_F(ClientTest, EncodedGradientsAndValuesTravelAsTheyAre) {
  options_.codec.set_gradients(v1::ENCODING_BF16);
  options_.codec.set_values(v1::ENCODING_BF16);
  const char gradient[] = "\x80\x3f\x00\x40\x40\x40\x80\x40";
  char values[8];
  Done(client().PushPull(0, 8, {{1, {}, {v1::ENCODING_BF16, {gradient, 8}}}, push_v_},
                         {{1, {}, {v1::ENCODING_BF16, values}}, pull_v_}));
  EXPECT_EQ(std::string(values, 8), std::string("\x80\xbf\x00\xc0\x40\xc0\x80\xc0", 8));
  EXPECT_THAT(v_, ElementsAre(-5, -6));
  EXPECT_EQ(shard0_.payload_bytes(), 8u);
}

TEST_F(ClientTest, RefusesWhatIsEncodedOtherwiseThanItsCodecSays) {
  options_.codec.set_gradients(v1::ENCODING_BF16);
  char bytes[8] = {};
  EXPECT_EQ(Outcome(client().Push(0, 8, {{1, {}, {v1::ENCODING_FP16, bytes}}})),
            "INVALID_ARGUMENT: gradient of \"w\" is fp16, want floats, or bf16 or fp16 if that is the "
            "client's codec, which is bf16");
  EXPECT_EQ(Outcome(client().Pull(0, {{1, {}, {v1::ENCODING_BF16, bytes}}})),
            "INVALID_ARGUMENT: memory for the values of \"w\" is bf16, want floats, or bf16 or fp16 if that "
            "is the client's codec, which is fp32");
  EXPECT_EQ(Outcome(client().Push(0, 8, {{1, {}, {v1::ENCODING_BF16, {bytes, 7}}}})),
            "INVALID_ARGUMENT: gradient of \"w\", encoded, has 7 bytes, want 8");
  EXPECT_EQ(Outcome(client().Push(0, 8, {{1, g4_, {v1::ENCODING_BF16, bytes}}})),
            "INVALID_ARGUMENT: gradient of \"w\" is given both as floats and encoded, want one of them");
}

class NoCopier : public ElementCopier {
 public:
  absl::Status Fetch(size_t, absl::Span<float>) override { return absl::UnimplementedError("fetched"); }
  absl::Status Store(size_t, absl::Span<const float>) override { return absl::UnimplementedError("stored"); }
};

TEST_F(ClientTest, RefusesACopierOfGradientsThatItEncodes) {
  options_.codec.set_gradients(v1::ENCODING_BF16);
  NoCopier copier;
  EXPECT_EQ(Outcome(client().Push(0, 8, {{1, g4_, {}, &copier}})),
            "INVALID_ARGUMENT: gradient of \"w\" has a copier, want none or codec fp32, got bf16");
}

// Elements of int8 share a scale, so a caller cannot encode parts of a tensor.
TEST_F(ClientTest, RefusesEncodedElementsOfAnotherSizeThan16Bits) {
  options_.codec.set_gradients(v1::ENCODING_INT8);
  const char bytes[8] = {};
  EXPECT_EQ(Outcome(client().Push(0, 8, {{1, {}, {v1::ENCODING_INT8, bytes}}})),
            "INVALID_ARGUMENT: gradient of \"w\" is int8, want floats, or bf16 or fp16 if that is the "
            "client's codec, which is int8");
}

TEST_F(ClientTest, SaysWhenAnswersBeganAndEnded) {
  for (bool watch : {false, true}) {
    options_.watch_answers = watch;
    client_.reset();
    const absl::Time before = absl::Now();
    const auto result = Done(client().PushPull(0, 8, {push_w_, push_v_}, {pull_w_, pull_v_}));
    EXPECT_LE(before, result.answers.first);
    EXPECT_LE(result.answers.first, result.answers.last);
    EXPECT_LE(result.answers.last, result.answers.end);
    EXPECT_LE(result.answers.end, absl::Now());
    const auto pulled = Done(client().Pull(0, {pull_w_}));
    EXPECT_LE(result.answers.end, pulled.answers.first);
    EXPECT_LE(pulled.answers.first, pulled.answers.end);
    // Only a watched response has a start before its end.
    EXPECT_EQ(pulled.answers.first < pulled.answers.end, watch);
  }
}

TEST_F(ClientTest, WatchedCallsAreTriedAgainAsOthersAre) {
  options_.watch_answers = true;
  shard0_.FailNext(2, Unavailable("away"));
  const auto pushed = Done(client().Push(0, 8, {push_w_}));
  EXPECT_EQ(pushed.retries, 2);
  EXPECT_LE(pushed.answers.first, pushed.answers.end);
}

TEST_F(ClientTest, ManySmallTensorsTravelInOneMessage) {
  std::vector<v1::TensorSpec> specs;
  std::vector<TensorGradient> gradients;
  for (uint32_t id = 0; id < 200; ++id) {
    specs.push_back(SgdSpec(id, absl::StrCat("t", id), 4));
    gradients.push_back({id, g4_});
  }
  EXPECT_EQ(Connected(specs)->Push(0, 1, gradients).Get()->applied, 200);
  EXPECT_EQ(shard0_.sequences().size(), 1);
  EXPECT_EQ(shard1_.sequences().size(), 1);
}

TEST_F(ClientTest, LargeTensorTravelsInMessagesWithinTheLimit) {
  const size_t elements = 8 * kMaxSliceElements + 5;
  const auto client = Connected({SgdSpec(1, "large", elements)});
  std::vector<float> gradient(elements), values(elements);
  for (size_t i = 0; i < elements; ++i) gradient[i] = i % 1000;
  const auto result = Done(client->PushPull(0, 1, {{1, gradient}}, {{1, absl::MakeSpan(values)}}));
  EXPECT_EQ(result.applied, 9);
  EXPECT_LE(shard0_.largest_message(), 4194304);
  EXPECT_EQ(shard0_.sequences().size() + shard1_.sequences().size(), 9);
  size_t wrong = 0;
  for (size_t i = 0; i < elements; ++i) wrong += values[i] != -gradient[i];
  EXPECT_EQ(wrong, 0);
}

TEST_F(ClientTest, GradientCarriesTheVersionLastPulled) {
  ASSERT_TRUE(client().Push(0, 1, {push_w_}).Get().ok());
  ASSERT_TRUE(client().Push(1, 1, {push_w_}).Get().ok());
  ASSERT_TRUE(client().Pull(2, {pull_w_}).Get().ok());
  ASSERT_TRUE(client().Push(2, 1, {push_w_}).Get().ok());
  EXPECT_THAT(shard0_.versions_sent(), ElementsAre(0, 0, 2));
}

TEST_F(ClientTest, PushWithoutExamplesSendsNoPayload) {
  ASSERT_TRUE(client().PushPull(0, 0, {{1, {}}}, {pull_w_}).Get().ok());
  EXPECT_EQ(shard0_.last_header().examples(), 0);
  EXPECT_THAT(w_, ElementsAre(0, 0, 0, 0));
}

TEST_F(ClientTest, RetriesWithTheSameSequenceNumber) {
  shard0_.FailNext(2, Unavailable("restarting"));
  const auto result = Done(client().Push(0, 1, {push_w_}));
  EXPECT_EQ(result.retries, 2);
  EXPECT_THAT(shard0_.sequences(), ElementsAre(1, 1, 1));
}

TEST_F(ClientTest, ReportsNoStepAsFinishedForValuesThatItSet) {
  options_.durability.set_mode(v1::Durability::WAL);
  ASSERT_TRUE(client().SetValues({{1, g4_}}).Get().ok());
  ASSERT_TRUE(client().Pull(0, {pull_w_}).Get().ok());
  shard0_.FailNext(1, Unavailable("restarting"));
  ASSERT_TRUE(client().Push(0, 1, {push_w_}).Get().ok());
  const v1::ReportVersionsRequest report = shard0_.AwaitReport();
  ASSERT_EQ(report.slices_size(), 1);
  EXPECT_EQ(report.slices(0).version(), 1);
  EXPECT_EQ(report.slices(0).finished_steps(), 0) << "the shard would drop the gradient of step 0";
}

TEST_F(ClientTest, SaysThatAPushHadBeenTakenBefore) {
  EXPECT_FALSE(client().Push(0, 1, {push_w_, push_v_}).Get()->duplicate);
  shard1_.AnswerAsDuplicates();
  EXPECT_TRUE(client().Push(1, 1, {push_w_, push_v_}).Get()->duplicate);
}

TEST_F(ClientTest, IncarnationIsTheTimeOfTheStartUnlessOneIsGiven) {
  const uint64_t before = absl::ToUnixMicros(absl::Now());
  ASSERT_TRUE(client().Push(0, 1, {push_w_}).Get().ok());
  EXPECT_GE(shard0_.last_header().incarnation(), before);
  EXPECT_LE(shard0_.last_header().incarnation(), absl::ToUnixMicros(absl::Now()));
  options_.incarnation = 7;
  client_.reset();
  ASSERT_TRUE(client().Push(0, 1, {push_w_}).Get().ok());
  EXPECT_EQ(shard0_.last_header().incarnation(), 7);
}

TEST_F(ClientTest, GivingUpNamesShardAttemptsAndCause) {
  options_.retry_timeout = absl::Milliseconds(300);
  shard1_.FailNext(1000000, Unavailable("draining"));
  EXPECT_THAT(Outcome(client().Push(0, 1, {push_v_})),
              MatchesRegex("UNAVAILABLE: shard 1 at 127.0.0.1:[0-9]+: push: gave up after [0-9.]+m?s and [0-9]+ "
                           "attempts: draining"));
}

TEST_F(ClientTest, DeadlineOfTheServersOwnWaitIsPassedOn) {
  shard0_.FailNext(1, grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, "waited 60s for worker 1"));
  EXPECT_EQ(Outcome(client().Pull(1, {pull_w_})),
            "DEADLINE_EXCEEDED: shard 0 at " + server0_.address() + ": pull: waited 60s for worker 1");
}

TEST_F(ClientTest, PayloadOfWrongSizeIsAnErrorAndChangesNothing) {
  shard0_.SpoilAnswers();
  EXPECT_EQ(Outcome(client().Pull(0, {pull_w_})),
            "INTERNAL: shard 0 at " + server0_.address() +
                ": pull: response: tensor 1 slice 0 has 15 bytes of fp32, want 16");
  EXPECT_THAT(w_, ElementsAre(9, 9, 9, 9));
}

TEST_F(ClientTest, FailureOnOneShardEndsTheWaitOnAnother) {
  const auto pull = BlockedPull();
  EXPECT_FALSE(pull.Ready());
  shard1_.FailNext(1, grpc::Status(grpc::StatusCode::NOT_FOUND, "no such tensor"));
  EXPECT_EQ(Outcome(client().Pull(0, {pull_w_, pull_v_})),
            "NOT_FOUND: shard 1 at " + server1_.address() + ": pull: no such tensor");
  EXPECT_FALSE(pull.Ready());
  shard0_.Release();
  EXPECT_TRUE(pull.Get().ok());
}

TEST_F(ClientTest, ShutdownEndsWaitsWithItsReason) {
  const auto pull = BlockedPull();
  client().Shutdown("worker 3 was lost");
  EXPECT_EQ(Outcome(pull), "CANCELLED: shard 0 at " + server0_.address() + ": pull: cancelled: worker 3 was lost");
  EXPECT_EQ(client().Push(0, 1, {push_v_}).Get().status().code(), absl::StatusCode::kCancelled);
}

// The responses are large, so that some are being decoded at the moment of the shutdown.
TEST_F(ClientTest, AnIdleClientWritesIntoNobodysMemory) {
  std::vector<float> values(1 << 21);
  for (int round = 0; round < 20; ++round) {
    const auto client = Connected({SgdSpec(3, "large", values.size())});
    std::vector<Future<PullResult>> pulls;
    for (int i = 0; i < 4; ++i) pulls.push_back(client->Pull(0, {{3, absl::MakeSpan(values)}}));
    absl::SleepFor(round * absl::Milliseconds(1));
    client->Shutdown("test");
    client->WaitUntilIdle();
    for (const auto& pull : pulls) EXPECT_TRUE(pull.Ready()) << "round " << round;
  }
}

TEST_F(ClientTest, DestructionEndsWaits) {
  shard0_.Block();
  shard1_.Block();
  auto pull = client().Pull(0, {pull_w_, pull_v_});
  ASSERT_TRUE(shard0_.AwaitBlocked(1));
  ASSERT_TRUE(shard1_.AwaitBlocked(1));
  client_.reset();
  EXPECT_TRUE(pull.Ready());
  EXPECT_EQ(pull.Get().status().code(), absl::StatusCode::kCancelled);
}

TEST_F(ClientTest, RefusesGradientOfWrongSize) {
  EXPECT_EQ(Outcome(client().Push(0, 1, {{1, g2_}})), "INVALID_ARGUMENT: gradient of \"w\" has 2 elements, want 4");
  EXPECT_EQ(Outcome(client().Pull(0, {{1, absl::MakeSpan(v_)}})),
            "INVALID_ARGUMENT: memory for the values of \"w\" has 2 elements, want 4");
  EXPECT_TRUE(shard0_.sequences().empty());
}

TEST_F(ClientTest, RefusesUnknownAndRepeatedAndMismatchedTensors) {
  EXPECT_EQ(Outcome(client().Push(0, 1, {{7, g2_}})), "INVALID_ARGUMENT: tensor 7 was not declared");
  EXPECT_EQ(Outcome(client().Push(0, 1, {push_v_, push_v_})), "INVALID_ARGUMENT: tensor \"v\" is given twice");
  EXPECT_EQ(Outcome(client().PushPull(0, 1, {push_w_}, {pull_v_})),
            "INVALID_ARGUMENT: push-pull: got values of tensor 2 with the gradient of tensor 1, want the same");
  EXPECT_EQ(Outcome(client().PushPull(0, 1, {push_w_}, {})),
            "INVALID_ARGUMENT: push-pull: got 1 gradients and 0 tensors of values, want the same tensors");
}

TEST_F(ClientTest, DeclaresToEachShardTheSlicesItOwns) {
  client();
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
  Connected({SgdSpec(1, "w", 4)});
  ASSERT_EQ(shard1_.declarations().size(), 1);
  const v1::DeclareTensorsRequest declared = shard1_.declarations()[0];
  EXPECT_EQ(declared.job(), "test");
  EXPECT_TRUE(declared.policy().has_async());
  EXPECT_EQ(declared.workers(), options_.workers);
  EXPECT_EQ(declared.tensors_size(), 0);
}

TEST_F(ClientTest, RefusesToDeclareATensorDifferently) {
  EXPECT_TRUE(client().Declare({SgdSpec(1, "w", 4)}).ok());
  EXPECT_THAT(client().Declare({SgdSpec(1, "w", 5)}).ToString(), MatchesRegex("FAILED_PRECONDITION: .*\"w\".*"));
}

TEST_F(ClientTest, RefusesToDeclareWithoutPolicy) {
  options_.policy.Clear();
  EXPECT_EQ(Connected()->Declare({SgdSpec(1, "w", 4)}),
            absl::InvalidArgumentError("policy: got nothing, want sync, async, bounded or local_sgd"));
}

TEST_F(ClientTest, ReportsEveryShardsStatus) {
  ASSERT_TRUE(client().Push(0, 1, {push_v_}).Get().ok());
  const auto statuses = client().GetStatus();
  ASSERT_TRUE(statuses.ok()) << statuses.status();
  ASSERT_EQ(statuses->size(), 2);
  EXPECT_EQ((*statuses)[0].pushes(), 0);
  EXPECT_EQ((*statuses)[1].pushes(), 1);
}

TEST_F(ClientTest, ConnectGivesUpNamingTheAddressAndHowLong) {
  server1_.Stop();
  options_.connect_timeout = absl::Milliseconds(300);
  EXPECT_THAT(Client::Connect(options_).status().ToString(),
              MatchesRegex("UNAVAILABLE: .*shard 1 at " + server1_.address() +
                           ": status: .*gave up after [0-9.]+m?s and [0-9]+ attempts?: .*"));
}

TEST_F(ClientTest, RefusesOptionsOutOfTheirRange) {
  const std::pair<std::function<void(ClientOptions&)>, const char*> cases[] = {
      {[](auto& options) { options.worker = 1; }, "worker: got 1, want less than the job's 1 workers"},
      {[](auto& options) { options.coordinator = "localhost:1"; },
       "coordinator address and shard addresses: got both, want exactly one of them"},
      {[](auto& options) { options.wait_timeout = absl::Hours(1); }, "wait_timeout: got 1h, want 1ms to 10m"},
      {[](auto& options) { options.job = "Not a name"; },
       "job: got \"Not a name\", want 1 to 63 of a-z, 0-9, '_' and '-'"},
  };
  for (const auto& [change, message] : cases) {
    ClientOptions options = options_;
    change(options);
    EXPECT_EQ(Client::Connect(options).status(), absl::InvalidArgumentError(message));
  }
}

TEST_F(ClientTest, CoordinatorTellsWhereTensorsAre) {
  Coordinator coordinator(options_);
  ASSERT_TRUE(client().Push(0, 1, {push_w_}).Get().ok());
  EXPECT_EQ(client().shard_map().shards().size(), 2);
  // A client that connects later needs no declaration.
  Done(Connected()->Pull(0, {pull_w_}));
  EXPECT_THAT(w_, ElementsAre(-1, -2, -3, -4));
}

TEST_F(ClientTest, AsksForANewerMapWhenAShardDoesNotOwnASliceAndSendsTheSameAgain) {
  Coordinator coordinator(options_);
  const uint64_t epoch = client().shard_map().epoch();
  ASSERT_GT(epoch, 0);
  // Another client places a tensor, so the epoch grows.
  Connected({SgdSpec(3, "u", 4)});
  shard0_.FailNext(1, NotOwner());
  const auto result = Done(client().Push(0, 1, {push_w_}));
  EXPECT_EQ(result.retries, 1);
  EXPECT_THAT(shard0_.sequences(), ElementsAre(1, 1));
  // The new map arrives in the background.
  for (int step = 1; shard0_.last_header().map_epoch() == epoch && step < 1000; ++step) {
    ASSERT_TRUE(client().Push(step, 1, {push_w_}).Get().ok());
  }
  EXPECT_EQ(shard0_.last_header().map_epoch(), epoch + 1);
}

TEST_F(ClientTest, GivesUpWhereNoMapKnowsTheOwner) {
  shard0_.FailNext(100, NotOwner());
  const absl::Status status = client().Push(0, 1, {push_w_}).Get().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(status), v1::ERROR_REASON_NOT_OWNER);
  EXPECT_LT(shard0_.sequences().size(), 10);
}

// A job with standbys: the coordinator knows the shards' addresses, and a third server is there for a shard to move to.
class ClientFollowTest : public ClientTest {
 protected:
  ClientFollowTest() { options_.durability.set_mode(v1::Durability::STANDBY); }
  ~ClientFollowTest() override { client_.reset(); }

  Coordinator coordinator_{options_};
  FakeParameterService standby_;
  FakeServer standby_server_{&standby_};
};

TEST_F(ClientFollowTest, PushOnItsWayToAFrozenShardGoesToWhereTheShardIsNow) {
  ASSERT_TRUE(client().Push(0, 1, {push_w_, push_v_}).Get().ok());
  shard0_.Block({2});
  auto push = client().Push(1, 1, {push_w_, push_v_});
  ASSERT_TRUE(shard0_.AwaitPushes(2));
  coordinator_.MoveShard(0, standby_server_.address());
  ASSERT_TRUE(push.Get().ok()) << push.Get().status();
  EXPECT_THAT(standby_.sequences(), ElementsAre(2));
  EXPECT_THAT(shard1_.sequences(), ElementsAre(1, 2));
  EXPECT_THAT(client().acknowledged_pushes(), ElementsAre(2, 2));
  EXPECT_EQ(client().shard_map().shards()[0], standby_server_.address());
}

TEST_F(ClientFollowTest, PushToADeadShardGoesToWhereItIsNow) {
  client();
  server1_.Stop();
  auto push = client().Push(0, 1, {push_w_, push_v_});
  coordinator_.MoveShard(1, standby_server_.address());
  ASSERT_TRUE(push.Get().ok()) << push.Get().status();
  EXPECT_THAT(standby_.sequences(), ElementsAre(1));
}

TEST_F(ClientFollowTest, FollowsAgainWhenTheCoordinatorIsBack) {
  const auto push = BlockedPush();
  coordinator_.FailMaps(Unavailable("restarting"));
  ASSERT_TRUE(coordinator_.AwaitMapCalls(4));
  coordinator_.MoveShard(0, standby_server_.address());
  coordinator_.FailMaps(grpc::Status::OK);
  ASSERT_TRUE(push.Get().ok()) << push.Get().status();
  EXPECT_THAT(standby_.sequences(), ElementsAre(1));
}

TEST_F(ClientFollowTest, DeclaringAgainAfterAMoveIsNoError) {
  client();
  coordinator_.MoveShard(0, standby_server_.address());
  const absl::Status declared = client().Declare({SgdSpec(1, "w", 4), SgdSpec(2, "v", 2)});
  EXPECT_TRUE(declared.ok()) << declared;
  EXPECT_EQ(client().shard_map().shards()[0], standby_server_.address());
}

TEST_F(ClientFollowTest, AddressThatItMayNotSpeakToEndsItsCallsAndSaysWhy) {
  const auto push = BlockedPush();
  // An address on another machine, without TLS.
  coordinator_.MoveShard(0, "192.0.2.1:7700");
  EXPECT_THAT(Outcome(push), MatchesRegex("CANCELLED: .*192.0.2.1:7700.*"));
}

TEST_F(ClientFollowTest, DestructionEndsTheWaitForANewerMap) {
  client();
  // Call 1 gets the first map; call 2 waits for the next.
  ASSERT_TRUE(coordinator_.AwaitMapCalls(2));
  const absl::Time begun = absl::Now();
  client_.reset();
  EXPECT_LT(absl::Now() - begun, absl::Seconds(10));
}

TEST_F(ClientFollowTest, ClientThatDeclaresNothingEndsToo) {
  auto client = Connected();
  const absl::Time begun = absl::Now();
  client.reset();
  EXPECT_LT(absl::Now() - begun, absl::Seconds(10));
}

TEST_F(ClientFollowTest, WhereServersComeBackToTheirPlaceAnotherAddressIsAnError) {
  options_.durability.set_mode(v1::Durability::WAL);
  client();
  coordinator_.MoveShard(0, standby_server_.address());
  const absl::Status moved = client().Declare({SgdSpec(1, "w", 4)});
  EXPECT_EQ(moved.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(moved.message(), "shard map: the shards' addresses have changed since they were first seen");
}

}  // namespace
}  // namespace ballast
