// SPDX-License-Identifier: Apache-2.0
// Messages through memory shared by a client and a server of one machine have the same effect as over a connection.
#include "tests/testing/shared_memory.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <string>
#include <thread>

#include "absl/algorithm/container.h"
#include "absl/time/clock.h"
#include "ballast/v1/parameter_service.grpc.pb.h"
#include "common/codecs/codec.h"
#include "common/shared_memory/shared_floats.h"
#include "common/shared_memory/shared_region.h"
#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "tests/fault/proxy/fault_proxy.h"

namespace ballast {
namespace {

TEST(SharedMemoryTest, TrainsToTheSameBitsInEveryEncoding) {
  for (const auto& [gradients, values] :
       {std::pair(v1::ENCODING_FP32, v1::ENCODING_FP32), std::pair(v1::ENCODING_BF16, v1::ENCODING_FP16),
        std::pair(v1::ENCODING_INT8, v1::ENCODING_INT8), std::pair(v1::ENCODING_TOP_K, v1::ENCODING_FP32),
        std::pair(v1::ENCODING_SIGN, v1::ENCODING_BF16)}) {
    EXPECT_TRUE(Train(true, gradients, values) == Train(false, gradients, values)) << v1::Encoding_Name(gradients);
  }
}

// In shared memory, too, a client's caller may encode by itself.
TEST(SharedMemoryTest, EncodedTensorsTravelAsTheyAre) {
  for (const bool shared : {true, false}) {
    const std::unique_ptr<Server> server = Serve();
    ClientOptions options = OptionsFor(*server, 0);
    options.codec.set_gradients(v1::ENCODING_BF16);
    options.codec.set_values(v1::ENCODING_FP16);
    const std::unique_ptr<Client> client = JoinAs(options, shared);
    const uint64_t calls = StatusOf(*client).shared_calls();
    std::string gradient(kElements * 2, '\0'), values(kElements * 2, '\0');
    (*FindCodec(v1::ENCODING_BF16))->Encode(Gradient(), 0, gradient.data());
    for (int step = 0; step < 3; ++step) {
      const TensorGradient pushed{1, {}, {v1::ENCODING_BF16, gradient}};
      const TensorValues pulled{1, {}, {v1::ENCODING_FP16, absl::MakeSpan(values)}};
      const auto result = client->PushPull(step, 1, {pushed}, {pulled}).Get();
      ASSERT_TRUE(result.ok()) << result.status();
    }
    EXPECT_EQ(StatusOf(*client).shared_calls() > calls, shared);
    const absl::string_view payload = values;
    std::vector<float> decoded(kElements);
    ASSERT_TRUE((*FindCodec(v1::ENCODING_FP16))->Decode({&payload, 1}, absl::MakeSpan(decoded)).ok());
    EXPECT_TRUE(decoded == Train(shared, v1::ENCODING_BF16, v1::ENCODING_FP16));
  }
}

// Who waits may receive by itself, also if others wait for the same client, or responses come by another way.
TEST(SharedMemoryTest, AwaitGivesWhatTheFutureGives) {
  for (const bool shared : {true, false}) {
    const std::unique_ptr<Server> server = Serve();
    const std::unique_ptr<Client> client = JoinAs(OptionsFor(*server, 0), shared);
    std::vector<std::thread> readers;
    for (int reader = 0; reader < 2; ++reader) {
      readers.emplace_back([&] {
        std::vector<float> values(kElements);
        for (int i = 0; i < 50; ++i) {
          const TensorValues pulled{1, absl::MakeSpan(values)};
          const auto result = client->Await(client->Pull(0, {pulled}));
          EXPECT_TRUE(result.ok()) << result.status();
        }
      });
    }
    std::vector<float> values(kElements);
    const std::vector<float> gradient = Gradient();
    for (int step = 0; step < 3; ++step) {
      const TensorGradient pushed{1, gradient};
      const TensorValues pulled{1, absl::MakeSpan(values)};
      const auto result = client->Await(client->PushPull(step, 1, {pushed}, {pulled}));
      ASSERT_TRUE(result.ok()) << result.status();
    }
    for (std::thread& reader : readers) reader.join();
    EXPECT_TRUE(values == Train(shared, v1::ENCODING_FP32, v1::ENCODING_FP32)) << shared;
    const TensorValues unknown{7, absl::MakeSpan(values)};
    EXPECT_EQ(client->Await(client->Pull(0, {unknown})).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

// A tensor outside the client's reach. Counts the elements that it copies to or from `own`, the caller's memory.
class FarTensor : public ElementCopier {
 public:
  absl::Status Fetch(size_t offset, absl::Span<float> to) override {
    if (Has(own_gradient, to.data())) through_own += to.size();
    std::copy_n(gradient.begin() + offset, to.size(), to.begin());
    return fetch_status;
  }
  absl::Status Store(size_t offset, absl::Span<const float> from) override {
    if (Has(own_values, from.data())) through_own += from.size();
    std::copy(from.begin(), from.end(), values.begin() + offset);
    return absl::OkStatus();
  }

  Future<PushResult> PushPull(Client& client, uint64_t step) {
    TensorGradient pushed{1, own_gradient};
    TensorValues pulled{1, absl::MakeSpan(own_values)};
    pushed.copier = pulled.copier = this;
    return client.PushPull(step, 1, {pushed}, {pulled});
  }

  absl::Status fetch_status;
  std::vector<float> gradient = Gradient(), values = std::vector<float>(kElements);
  std::vector<float> own_gradient = std::vector<float>(kElements), own_values = std::vector<float>(kElements);
  std::atomic<size_t> through_own{0};

 private:
  static bool Has(const std::vector<float>& own, const float* place) {
    return place >= own.data() && place < own.data() + own.size();
  }
};

TEST(SharedMemoryTest, ACopierCopiesOnce) {
  const std::vector<float> want = Train(false, v1::ENCODING_FP32, v1::ENCODING_FP32);
  for (const bool shared : {true, false}) {
    const std::unique_ptr<Server> server = Serve();
    const std::unique_ptr<Client> client = JoinAs(OptionsFor(*server, 0), shared);
    EXPECT_EQ(client->SharesMemory(1), shared);
    FarTensor tensor;
    for (int step = 0; step < 3; ++step) {
      const auto pushed = tensor.PushPull(*client, step).Get();
      ASSERT_TRUE(pushed.ok()) << pushed.status();
    }
    EXPECT_TRUE(tensor.values == want);
    EXPECT_EQ(tensor.through_own, shared ? 0 : 3 * 2 * kElements);
  }
}

// The connection ends while the calls wait in shared memory, which has the server's copy of their gradients.
TEST(SharedMemoryTest, ARetryFetchesTheGradientAgain) {
  const std::unique_ptr<Server> server = Serve();
  const std::unique_ptr<FaultProxy> proxy = *FaultProxy::Start(server->address(), {}, 1);
  ClientOptions options = OptionsFor(*server, 1);
  options.policy.mutable_sync();
  const std::unique_ptr<Client> other = JoinAs(options);
  options.worker = 0;
  options.shards = {proxy->address()};
  const std::unique_ptr<Client> client = JoinAs(options);
  AwaitSharing(*client);
  AwaitSharing(*other);
  FarTensor tensor;
  const std::vector<float> gradient = Gradient();
  std::vector<float> values(kElements);
  for (int step = 0; step < 3; ++step) {
    const Future<PushResult> pushed = tensor.PushPull(*client, step);
    if (step == 1) {
      while (StatusOf(*other).waiting() < 4) std::this_thread::yield();
      proxy->CutAll();
      while (StatusOf(*other).duplicates() < 4) std::this_thread::yield();
    }
    ASSERT_TRUE(other->PushPull(step, 1, {{1, gradient}}, {{1, absl::MakeSpan(values)}}).Get().ok());
    ASSERT_TRUE(pushed.Get().ok()) << pushed.Get().status();
  }
  EXPECT_TRUE(tensor.own_gradient != std::vector<float>(kElements));
  EXPECT_TRUE(tensor.values == values);
}

// Gradients and values that are read where they are give the bits that copies give.
TEST(SharedMemoryTest, AGradientInTheHeapHasTheSameEffect) {
  for (const v1::Encoding encoding : {v1::ENCODING_FP32, v1::ENCODING_BF16}) {
    const std::unique_ptr<Server> server = Serve();
    ClientOptions options = OptionsFor(*server, 0);
    options.incarnation = 1;
    options.codec.set_gradients(encoding);
    const std::unique_ptr<Client> client = JoinAs(options);
    AwaitSharing(*client);
    SharedFloats gradient(kElements);
    std::vector<float> values(kElements);
    for (int step = 0; step < 3; ++step) {
      absl::c_copy(Gradient(), gradient.data());
      ASSERT_TRUE(client->PushPull(step, 1, {{1, gradient.span()}}, {{1, absl::MakeSpan(values)}}).Get().ok());
      // It is the caller's again.
      std::fill_n(gradient.data(), kElements, 1e30f);
    }
    EXPECT_TRUE(values == Train(false, encoding, v1::ENCODING_FP32));
    EXPECT_EQ(StatusOf(*client).duplicates(), 0u);
  }
}

// The connection ends while the calls wait in shared memory; then a message goes over another one, from the heap.
TEST(SharedMemoryTest, ARetrySendsAGradientOfTheHeapAgain) {
  const std::unique_ptr<Server> server = Serve();
  const std::unique_ptr<FaultProxy> proxy = *FaultProxy::Start(server->address(), {}, 1);
  ClientOptions options = OptionsFor(*server, 1);
  options.policy.mutable_sync();
  const std::unique_ptr<Client> other = JoinAs(options);
  options.worker = 0;
  options.shards = {proxy->address()};
  const std::unique_ptr<Client> client = JoinAs(options);
  AwaitSharing(*client);
  AwaitSharing(*other);
  SharedFloats gradient(kElements);
  absl::c_copy(Gradient(), gradient.data());
  std::vector<float> values(kElements), others(kElements);
  for (int step = 0; step < 3; ++step) {
    const Future<PushResult> pushed = client->PushPull(step, 1, {{1, gradient.span()}}, {{1, absl::MakeSpan(values)}});
    if (step == 1) {
      while (StatusOf(*other).waiting() < 4) std::this_thread::yield();
      proxy->CutAll();
      while (StatusOf(*other).duplicates() < 4) std::this_thread::yield();
    }
    ASSERT_TRUE(other->PushPull(step, 1, {{1, Gradient()}}, {{1, absl::MakeSpan(others)}}).Get().ok());
    ASSERT_TRUE(pushed.Get().ok()) << pushed.Get().status();
    EXPECT_TRUE(values == others);
  }
}

TEST(SharedMemoryTest, SmallMessagesNeedNoConnection) {
  const std::unique_ptr<Server> server = Serve();
  const std::unique_ptr<FaultProxy> proxy = *FaultProxy::Start(server->address(), {}, 1);
  ClientOptions options = OptionsFor(*server, 0);
  options.shards = {proxy->address()};
  const std::unique_ptr<Client> client = JoinAs(options);
  ASSERT_TRUE(client->Declare({Spec(2, "small", 3)}).ok());
  AwaitSharing(*client);
  const uint64_t bytes = proxy->counts().bytes;
  const std::vector<float> gradient(3, 1);
  std::vector<float> values(3);
  for (int step = 0; step < 100; ++step) {
    const auto pushed = client->PushPull(step, 1, {{2, gradient}}, {{2, absl::MakeSpan(values)}}).Get();
    ASSERT_TRUE(pushed.ok()) << pushed.status();
  }
  EXPECT_EQ(values[2], 0);
  EXPECT_LT(proxy->counts().bytes - bytes, 1000);
}

TEST(SharedMemoryTest, ARefusalHasTheMessageThatItHasOverAConnection) {
  std::string messages[2];
  for (const bool shared : {true, false}) {
    const std::unique_ptr<Server> server = Serve();
    const std::unique_ptr<Client> client = JoinAs(OptionsFor(*server, 0), shared);
    std::vector<float> gradient(kElements);
    gradient[7] = std::numeric_limits<float>::infinity();
    const absl::Status refused = client->Push(0, 1, {{1, gradient}}).Get().status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
    // The ports differ.
    messages[shared] = absl::StrCat(v1::ErrorReason_Name(ReasonOf(refused)), " ",
                                    refused.message().substr(refused.message().find("push")));
  }
  EXPECT_EQ(messages[0], messages[1]);
}

TEST(SharedMemoryTest, AGradientThatCannotBeFetchedIsNotPushed) {
  for (const bool shared : {true, false}) {
    const std::unique_ptr<Server> server = Serve();
    const std::unique_ptr<Client> client = JoinAs(OptionsFor(*server, 0), shared);
    FarTensor tensor;
    tensor.fetch_status = absl::InternalError("no GPU");
    const absl::Status status = tensor.PushPull(*client, 0).Get().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
    EXPECT_THAT(std::string(status.message()), ::testing::EndsWith("no GPU"));
    EXPECT_EQ(StatusOf(*client).worker_pushes(0).highest_sequence(), 0u);
  }
}

TEST(SharedMemoryTest, IsPinnedFromItsFirstUseUntilItIsUnmapped) {
  const std::unique_ptr<Server> server = Serve();
  ClientOptions options = OptionsFor(*server, 0);
  std::atomic<char*> pinned{nullptr};
  std::atomic<bool> undone{false};
  options.pin_memory = [&](absl::Span<char> memory) {
    pinned = memory.data();
    // The memory is still mapped.
    return std::shared_ptr<void>(memory.data(), [&](void* mapped) {
      static_cast<void>(*static_cast<volatile char*>(mapped));
      undone = true;
    });
  };
  std::unique_ptr<Client> client = JoinAs(options);
  AwaitSharing(*client);
  EXPECT_NE(pinned.load(), nullptr);
  EXPECT_FALSE(undone);
  client.reset();
  EXPECT_TRUE(undone);
}

TEST(SharedMemoryTest, IsGivenBackWhenItsClientIsGone) {
  const std::unique_ptr<Server> server = Serve();
  const std::unique_ptr<Client> watcher = JoinAs(OptionsFor(*server, 0));
  {
    const std::unique_ptr<Client> client = JoinAs(OptionsFor(*server, 1));
    AwaitSharing(*client);
    EXPECT_EQ(StatusOf(*watcher).shared_regions(), 1u);
  }
  const absl::Time give_up = absl::Now() + absl::Seconds(60);
  const auto holds = [](const v1::GetStatusResponse& status) {
    return status.shared_regions() > 0 || status.bytes_in_flight() > 0;
  };
  while (holds(StatusOf(*watcher)) && absl::Now() < give_up) {
  }
  EXPECT_EQ(StatusOf(*watcher).shared_regions(), 0u);
  EXPECT_EQ(StatusOf(*watcher).bytes_in_flight(), 0u);
}

TEST(SharedMemoryTest, IsNotGivenWhereTheBudgetIsTooSmallAndTheJobGoesOn) {
  const std::unique_ptr<Server> server = Serve("127.0.0.1:0", 32 << 20);
  const std::unique_ptr<Client> client = JoinAs(OptionsFor(*server, 0));
  std::vector<float> values(kElements);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(client->Pull(0, {{1, absl::MakeSpan(values)}}).Get().ok());
  }
  EXPECT_EQ(values[kElements - 1], 100);
  EXPECT_EQ(StatusOf(*client).shared_calls(), 0u);
}

TEST(SharedMemoryTest, IsHadAgainAfterTheServerWasRestarted) {
  std::unique_ptr<Server> server = Serve();
  const std::string address = server->address();
  const std::unique_ptr<Client> client = JoinAs(OptionsFor(*server, 0));
  AwaitSharing(*client);
  server.reset();
  server = Serve(address);
  ASSERT_NE(server, nullptr);
  const std::unique_ptr<Client> other = JoinAs(OptionsFor(*server, 1));
  AwaitSharing(*client);
  const std::vector<float> gradient = Gradient();
  std::vector<float> values(kElements);
  const auto pushed = client->PushPull(0, 1, {{1, gradient}}, {{1, absl::MakeSpan(values)}}).Get();
  ASSERT_TRUE(pushed.ok()) << pushed.status();
  EXPECT_EQ(values[1000], 99);
}

TEST(SharedMemoryTest, DoesNotKeepAServerThatDrains) {
  const std::unique_ptr<Server> server = Serve();
  const std::unique_ptr<Client> client = JoinAs(OptionsFor(*server, 0));
  AwaitSharing(*client);
  const absl::Time start = absl::Now();
  server->Drain(absl::Minutes(5));
  EXPECT_LT(absl::Now() - start, absl::Minutes(4));
}

// The first worker waits in shared memory for the second until its timeout.
TEST(SharedMemoryTest, ACallThatIsGivenUpHarmsNoOther) {
  const std::unique_ptr<Server> server = Serve();
  ClientOptions options = OptionsFor(*server, 0);
  options.policy.mutable_sync();
  // Long enough for its own gradient to arrive on a busy machine.
  options.wait_timeout = absl::Milliseconds(500);
  const std::unique_ptr<Client> client = JoinAs(options);
  AwaitSharing(*client);
  options.worker = 1;
  options.wait_timeout = absl::Seconds(30);
  const std::unique_ptr<Client> other = JoinAs(options);
  AwaitSharing(*other);
  const std::vector<float> gradient(kElements, 1);
  std::vector<float> values(kElements);
  const auto waited = client->PushPull(0, 1, {{1, gradient}}, {{1, absl::MakeSpan(values)}}).Get();
  EXPECT_TRUE(absl::IsDeadlineExceeded(waited.status())) << waited.status();
  const auto pushed = other->PushPull(0, 1, {{1, gradient}}, {{1, absl::MakeSpan(values)}}).Get();
  ASSERT_TRUE(pushed.ok()) << pushed.status();
  EXPECT_EQ(values[kElements - 1], 99);
  ASSERT_TRUE(client->Pull(1, {{1, absl::MakeSpan(values)}}).Get().ok());
  EXPECT_EQ(values[0], 99);
}

TEST(SharedMemoryTest, RefusesAClientThatIsElsewhereOrOfAnotherJob) {
  const std::unique_ptr<Server> server = Serve();
  const std::unique_ptr<Client> client = JoinAs(OptionsFor(*server, 0));
  const auto stub =
      v1::ParameterService::NewStub(grpc::CreateChannel(server->address(), grpc::InsecureChannelCredentials()));
  const auto ask = [&](const std::string& job, const std::string& machine) {
    v1::ShareMemoryRequest request;
    request.set_job(job);
    request.set_machine(machine);
    grpc::ClientContext context;
    const auto stream = stub->ShareMemory(&context, request);
    v1::ShareMemoryResponse region;
    EXPECT_FALSE(stream->Read(&region));
    return stream->Finish();
  };
  const grpc::Status elsewhere = ask("shared", "another machine");
  EXPECT_EQ(elsewhere.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(elsewhere.error_message(), "shard 0: the client runs on another machine or as another user");
  EXPECT_EQ(ask("other", MachineId()).error_message(), "shard 0: this server holds job \"shared\", got \"other\"");
  EXPECT_EQ(StatusOf(*client).shared_regions(), 0u);
}

// Without a response: the client ends while its calls wait for another worker.
TEST(SharedMemoryTest, ACallWhoseClientEndsHoldsNothing) {
  const std::unique_ptr<Server> server = Serve();
  ClientOptions options = OptionsFor(*server, 0);
  options.policy.mutable_sync();
  const std::unique_ptr<Client> watcher = JoinAs(options);
  options.worker = 1;
  std::unique_ptr<Client> client = JoinAs(options);
  AwaitSharing(*client);
  const uint64_t before = StatusOf(*watcher).bytes_in_flight();
  std::vector<float> values(kElements);
  const Future<PullResult> waits = client->Pull(1, {{1, absl::MakeSpan(values)}});
  while (StatusOf(*watcher).waiting() < 4) std::this_thread::yield();
  client.reset();
  EXPECT_FALSE(waits.Get().ok());
  const absl::Time give_up = absl::Now() + absl::Seconds(60);
  v1::GetStatusResponse status = StatusOf(*watcher);
  while ((status.waiting() > 0 || status.bytes_in_flight() >= before) && absl::Now() < give_up) {
    absl::SleepFor(absl::Milliseconds(1));
    status = StatusOf(*watcher);
  }
  EXPECT_EQ(status.waiting(), 0u);
  EXPECT_LT(status.bytes_in_flight(), before);
}

}  // namespace
}  // namespace ballast
