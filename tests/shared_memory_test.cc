// SPDX-License-Identifier: Apache-2.0
// Messages through memory shared by a client and a server of one machine have the same effect as over a connection.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <thread>

#include "absl/algorithm/container.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "ballast/v1/parameter_service.grpc.pb.h"
#include "common/codecs/codec.h"
#include "common/shared_memory/message_pieces.h"
#include "common/shared_memory/shared_floats.h"
#include "common/shared_memory/shared_message.h"
#include "common/shared_memory/shared_region.h"
#include "common/wire/payload_message.h"
#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "tests/fault/proxy/fault_proxy.h"
#include "tests/testing/cluster.h"

namespace ballast {
namespace {

constexpr size_t kElements = (3 << 20) + 5;

std::unique_ptr<Server> Serve(const std::string& listen = "127.0.0.1:0", uint64_t max_bytes_in_flight = 256 << 20) {
  Server::Options options;
  options.listen = listen;
  options.workers = 2;
  options.max_bytes_in_flight = max_bytes_in_flight;
  return StartServer(std::move(options));
}

ClientOptions OptionsFor(const Server& server, uint32_t worker) {
  ClientOptions options;
  options.shards = {server.address()};
  options.job = "shared";
  options.policy.mutable_async();
  options.workers = 2;
  options.worker = worker;
  return options;
}

std::unique_ptr<Client> JoinAs(const ClientOptions& options) {
  auto client = Join(options, {Spec(1, "w", kElements)});
  EXPECT_TRUE(client.ok()) << client.status();
  return client.ok() ? *std::move(client) : nullptr;
}

v1::GetStatusResponse StatusOf(Client& client) {
  const auto status = client.GetStatus();
  EXPECT_TRUE(status.ok()) << status.status();
  return status.ok() ? (*status)[0] : v1::GetStatusResponse();
}

// Pulls until the client's messages go through shared memory.
void AwaitSharing(Client& client) {
  std::vector<float> values(kElements);
  const uint64_t before = StatusOf(client).shared_calls();
  const absl::Time give_up = absl::Now() + absl::Seconds(60);
  while (StatusOf(client).shared_calls() == before && absl::Now() < give_up) {
    const auto pulled = client.Pull(0, {{1, absl::MakeSpan(values)}}).Get();
    ASSERT_TRUE(pulled.ok()) << pulled.status();
  }
  ASSERT_GT(StatusOf(client).shared_calls(), before);
}

// A client that shares memory with the server and writes to it directly.
struct Stranger {
  explicit Stranger(const Server& server)
      : stub(v1::ParameterService::NewStub(grpc::CreateChannel(server.address(), grpc::InsecureChannelCredentials()))) {
    v1::ShareMemoryRequest request;
    request.set_job("shared");
    request.set_machine(MachineId());
    *request.mutable_heap() = ToProto(*SharedHeap::OfProcess().Describe());
    stream = stub->ShareMemory(&context, request);
    v1::ShareMemoryResponse response;
    if (!stream->Read(&response)) return;
    region = *SharedRegion::Open(response.region());
    heap = *SharedHeapView::Open(FromProto(response.heap()));
  }
  ~Stranger() { context.TryCancel(); }

  std::unique_ptr<v1::ParameterService::Stub> stub;
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReader<v1::ShareMemoryResponse>> stream;
  std::shared_ptr<SharedRegion> region;
  std::shared_ptr<SharedHeapView> heap;
};

std::vector<float> Gradient() {
  std::vector<float> gradient(kElements);
  for (size_t i = 0; i < kElements; ++i) gradient[i] = static_cast<float>(i % 1001) / 500 - 1;
  return gradient;
}

// Returns the weights after a few push-pulls.
std::vector<float> Train(bool shared, v1::Encoding gradients, v1::Encoding values_encoding) {
  const std::unique_ptr<Server> server = Serve();
  ClientOptions options = OptionsFor(*server, 0);
  // Random rounding depends on the incarnation.
  options.incarnation = 1;
  options.shared_memory = shared;
  options.codec.set_gradients(gradients);
  options.codec.set_values(values_encoding);
  const std::unique_ptr<Client> client = JoinAs(options);
  if (shared) AwaitSharing(*client);
  const uint64_t calls = StatusOf(*client).shared_calls();
  const std::vector<float> gradient = Gradient();
  std::vector<float> values(kElements);
  for (int step = 0; step < 3; ++step) {
    const auto pushed = client->PushPull(step, 1, {{1, gradient}}, {{1, absl::MakeSpan(values)}}).Get();
    EXPECT_TRUE(pushed.ok()) << pushed.status();
  }
  EXPECT_EQ(StatusOf(*client).shared_calls() > calls, shared);
  EXPECT_EQ(StatusOf(*client).duplicates(), 0u);
  return values;
}

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
    options.shared_memory = shared;
    options.codec.set_gradients(v1::ENCODING_BF16);
    options.codec.set_values(v1::ENCODING_FP16);
    const std::unique_ptr<Client> client = JoinAs(options);
    if (shared) AwaitSharing(*client);
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
    ClientOptions options = OptionsFor(*server, 0);
    options.shared_memory = shared;
    const std::unique_ptr<Client> client = JoinAs(options);
    if (shared) AwaitSharing(*client);
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

// Returns a pull of the first slice.
std::string PullOfTheFirstSlice() {
  v1::PullRequest pull;
  pull.set_job("shared");
  pull.add_slices()->set_tensor_id(1);
  return pull.SerializeAsString();
}

// Makes the call in a slot, and returns its response.
SlotResponse CallIn(Stranger& stranger, uint32_t slot, uint32_t method, const std::string& request) {
  SharedRegion& region = *stranger.region;
  std::memcpy(region.Slot(slot).data(), request.data(), request.size());
  region.Call(slot, {.method = method, .bytes = static_cast<uint32_t>(request.size()), .takes_pieces = true});
  const absl::Time give_up = absl::Now() + absl::Seconds(60);
  std::optional<SlotResponse> response;
  while (!response.has_value() && absl::Now() < give_up) response = region.TakeResponse(slot);
  EXPECT_TRUE(response.has_value());
  return response.value_or(SlotResponse());
}

// What a response lends stays as it is until it has been read, however long that takes; and others train on.
TEST(SharedMemoryTest, ValuesAreNotChangedWhileTheyAreRead) {
  const std::unique_ptr<Server> server = Serve();
  const std::unique_ptr<Client> honest = JoinAs(OptionsFor(*server, 0));
  Stranger stranger(*server);
  ASSERT_NE(stranger.region, nullptr);
  ASSERT_NE(stranger.heap, nullptr);
  const SlotResponse first = CallIn(stranger, 0, /*method=*/1, PullOfTheFirstSlice());
  ASSERT_TRUE(first.in_pieces);
  const auto lent = ViewPieces({first.offset, first.bytes}, stranger.region->Slot(0), *stranger.heap);
  ASSERT_TRUE(lent.ok()) << lent.status();
  const std::string before = absl::StrJoin(*lent, "");
  std::vector<float> values(kElements);
  for (int step = 0; step < 3; ++step) {
    const auto pushed = honest->PushPull(step, 1, {{1, Gradient()}}, {{1, absl::MakeSpan(values)}}).Get();
    ASSERT_TRUE(pushed.ok()) << pushed.status();
  }
  EXPECT_TRUE(values == Train(false, v1::ENCODING_FP32, v1::ENCODING_FP32));
  EXPECT_TRUE(absl::StrJoin(*lent, "") == before);
  EXPECT_TRUE(stranger.region->EndResponseLoan(0));
  // The next call in that slot gets the new values, and then one that ended no loan costs nobody anything.
  for (int i = 0; i < 20; ++i) {
    const SlotResponse next = CallIn(stranger, 0, /*method=*/1, PullOfTheFirstSlice());
    ASSERT_TRUE(next.in_pieces);
    const auto now = ViewPieces({next.offset, next.bytes}, stranger.region->Slot(0), *stranger.heap);
    ASSERT_TRUE(now.ok()) << now.status();
    EXPECT_EQ(std::memcmp(now->back().data(), values.data(), now->back().size()), 0);
  }
}

// A client's lists of pieces lie, and it changes them and its heap while the server reads.
TEST(SharedMemoryTest, ServerSurvivesWhateverIsInPieces) {
  const std::unique_ptr<Server> server = Serve();
  const std::unique_ptr<Client> honest = JoinAs(OptionsFor(*server, 0));
  {
    Stranger stranger(*server);
    ASSERT_NE(stranger.region, nullptr);
    SharedRegion& region = *stranger.region;
    ASSERT_TRUE(region.takes_pieces());
    v1::PushRequest push;
    push.mutable_header()->set_job("shared");
    push.mutable_header()->set_worker(1);
    push.mutable_header()->set_incarnation(1);
    push.mutable_header()->set_sequence(1);
    push.add_gradients()->set_tensor_id(1);
    SharedFloats gradient(64 << 10);
    std::atomic<bool> done{false};
    std::thread scribbler([&] {
      std::mt19937 own(8);
      while (!done) {
        char* const memory = own() % 2 == 0 ? region.Slot(0).data() : reinterpret_cast<char*>(gradient.data());
        memory[own() % 100] = static_cast<char>(own());
      }
    });
    std::mt19937_64 random(7);
    int ended = 0;
    for (int i = 0; i < 2000; ++i) {
      PayloadMessageWriter writer(push);
      const grpc::Slice payload(gradient.data(), gradient.size() * sizeof(float), [](void*) {});
      writer.Add(v1::PushRequest::kGradientsFieldNumber, push.gradients(0), payload);
      const auto spot = WritePieces(writer.Finish(), SharedHeap::OfProcess(), region.Slot(0));
      ASSERT_TRUE(spot.has_value());
      uint64_t words[8];
      std::memcpy(words, region.Slot(0).data(), sizeof(words));
      if (random() % 2 == 0) words[random() % 8] = random() >> (random() % 64);
      std::memcpy(region.Slot(0).data(), words, sizeof(words));
      SlotRequest call = {.bytes = spot->bytes, .in_pieces = random() % 8 != 0, .takes_pieces = random() % 2 == 0};
      if (random() % 8 == 0) call.bytes = random();
      region.Call(0, call);
      if (random() % 8 == 0) region.WithdrawRequest(0);
      const absl::Time give_up = absl::Now() + absl::Seconds(60);
      while (!region.TakeResponse(0).has_value() && absl::Now() < give_up) {
      }
      ended += absl::Now() < give_up ? 1 : 0;
    }
    EXPECT_EQ(ended, 2000);
    done = true;
    scribbler.join();
  }
  std::vector<float> values(kElements);
  EXPECT_TRUE(honest->Pull(0, {{1, absl::MakeSpan(values)}}).Get().ok());
  EXPECT_EQ(StatusOf(*honest).waiting(), 0u);
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
    ClientOptions options = OptionsFor(*server, 0);
    options.shared_memory = shared;
    const std::unique_ptr<Client> client = JoinAs(options);
    if (shared) AwaitSharing(*client);
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
    ClientOptions options = OptionsFor(*server, 0);
    options.shared_memory = shared;
    const std::unique_ptr<Client> client = JoinAs(options);
    if (shared) AwaitSharing(*client);
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

// The sent message and the message in the slot are merged: if both have a field, the slot's value counts.
TEST(SharedMemoryTest, AnyFieldMayStandBesideTheBlock) {
  const std::unique_ptr<Server> server = Serve();
  const std::unique_ptr<Client> honest = JoinAs(OptionsFor(*server, 0));
  ASSERT_TRUE(honest->Declare({Spec(2, "small", 3)}).ok());
  const Stranger stranger(*server);
  ASSERT_NE(stranger.region, nullptr);
  const auto& stub = stranger.stub;
  const std::shared_ptr<SharedRegion>& region = stranger.region;

  v1::PushRequest inside;
  inside.mutable_header()->set_sequence(2);
  v1::SliceGradient* gradient = inside.add_gradients();
  gradient->set_tensor_id(1);
  gradient->set_encoding(v1::ENCODING_TOP_K);
  // The first element is 4.
  gradient->set_payload(std::string("\0\0\0\0\0\0\x80\x40", 8));
  v1::PushRequest outside;
  outside.mutable_header()->set_job("shared");
  outside.mutable_header()->set_worker(1);
  outside.mutable_header()->set_incarnation(1);
  outside.mutable_header()->set_sequence(1);
  outside.mutable_header()->set_examples(1);
  *outside.add_gradients() = *gradient;
  outside.mutable_gradients(0)->set_tensor_id(2);
  outside.mutable_gradients(0)->set_payload(std::string("\1\0\0\0\0\0\x80\x40", 8));
  const std::string text = inside.SerializeAsString();
  for (bool duplicate : {false, true}) {
    std::memcpy(region->Slot(0).data(), text.data(), text.size());
    region->Lend(0);
    outside.mutable_in_shared_memory()->set_region(region->id());
    outside.mutable_in_shared_memory()->set_bytes(text.size());
    // Ignored, because the slot has another sequence number.
    outside.mutable_header()->set_sequence(duplicate ? 77 : 1);
    grpc::ClientContext call;
    v1::PushResponse answer;
    const grpc::Status status = stub->Push(&call, outside, &answer);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(answer.outcome().applied(), 2);
    EXPECT_EQ(answer.outcome().duplicate(), duplicate);
    region->TakeBack(0);
  }
  EXPECT_EQ(StatusOf(*honest).worker_pushes(1).highest_sequence(), 2);
}

// A client lends bytes that are no message, refers to slots that are not lent, and writes while the server reads.
TEST(SharedMemoryTest, ServerSurvivesWhateverLiesThere) {
  const std::unique_ptr<Server> server = Serve();
  const std::unique_ptr<Client> honest = JoinAs(OptionsFor(*server, 0));
  const Stranger stranger(*server);
  ASSERT_NE(stranger.region, nullptr);
  const auto& stub = stranger.stub;
  const std::shared_ptr<SharedRegion>& region = stranger.region;

  v1::PushPullRequest push;
  push.mutable_header()->set_job("shared");
  push.mutable_header()->set_worker(1);
  push.mutable_header()->set_incarnation(1);
  push.set_wait_ms(1);
  v1::SliceGradient* gradient = push.add_gradients();
  gradient->set_tensor_id(1);
  gradient->set_encoding(v1::ENCODING_TOP_K);
  for (uint32_t i = 0; i < 2000; ++i) gradient->mutable_payload()->append(reinterpret_cast<const char*>(&i), 4);
  gradient->mutable_payload()->append(8000, 0);

  std::mt19937 random(7);
  std::atomic<bool> done{false};
  std::thread scribbler([&] {
    std::mt19937 own(8);
    while (!done) region->Slot(0)[own() % 16384] = static_cast<char>(own());
  });
  int answered = 0, refused = 0;
  for (int i = 0; i < 3000; ++i) {
    push.mutable_header()->set_sequence(i + 1);
    const std::string text = push.SerializeAsString();
    const uint32_t slot = random() % 2;
    std::memcpy(region->Slot(slot).data(), text.data(), text.size());
    if (random() % 4 == 0) region->Slot(slot)[random() % text.size()] = static_cast<char>(random());
    if (random() % 8 != 0) region->Lend(slot);
    v1::SharedSlot reference;
    reference.set_region(random() % 16 == 0 ? random() : region->id());
    reference.set_slot(random() % 16 == 0 ? random() : slot);
    reference.set_offset(random() % 16 == 0 ? random() : 0);
    reference.set_bytes(random() % 16 == 0 ? random() : text.size());
    v1::PushPullRequest shared;
    *shared.mutable_in_shared_memory() = reference;
    grpc::ClientContext call;
    call.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(60)));
    v1::PushPullResponse answer;
    const grpc::Status status = stub->PushPull(&call, shared, &answer);
    EXPECT_NE(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << status.error_message();
    ++(status.ok() ? answered : refused);
    region->TakeBack(slot);
  }
  done = true;
  scribbler.join();
  // The counts depend on how the threads are scheduled.
  EXPECT_GT(answered, 10);
  EXPECT_GT(refused, 10);
  std::vector<float> values(kElements);
  EXPECT_TRUE(honest->Pull(0, {{1, absl::MakeSpan(values)}}).Get().ok());
}

// A client makes calls that are no calls, changes them while they are served, and rings for nothing.
TEST(SharedMemoryTest, ServerSurvivesWhateverIsCalledThere) {
  const std::unique_ptr<Server> server = Serve();
  const std::unique_ptr<Client> honest = JoinAs(OptionsFor(*server, 0));
  {
    const Stranger stranger(*server);
    ASSERT_NE(stranger.region, nullptr);
    SharedRegion& region = *stranger.region;
    ASSERT_TRUE(region.offers_calls());
    v1::PushPullRequest push;
    push.mutable_header()->set_job("shared");
    push.mutable_header()->set_worker(1);
    push.mutable_header()->set_incarnation(1);
    push.set_wait_ms(1);
    v1::SliceGradient* gradient = push.add_gradients();
    gradient->set_tensor_id(1);
    gradient->set_encoding(v1::ENCODING_TOP_K);
    for (uint32_t i = 0; i < 2000; ++i) gradient->mutable_payload()->append(reinterpret_cast<const char*>(&i), 4);
    gradient->mutable_payload()->append(8000, 0);

    std::mt19937 random(7);
    std::atomic<bool> done{false};
    std::thread scribbler([&] {
      std::mt19937 own(8);
      while (!done) {
        // The first page has the slots' owners and the bells.
        char* const memory = own() % 2 == 0 ? region.Slot(0).data() : region.memory().data();
        const size_t at = own() % (memory == region.memory().data() ? 4096 : 16384);
        memory[at] = static_cast<char>(own() % 8);
        if (own() % 64 == 0) region.server_bell().Ring();
      }
    });
    for (int i = 0; i < 3000; ++i) {
      push.mutable_header()->set_sequence(i + 1);
      const std::string text = push.SerializeAsString();
      const uint32_t slot = random() % region.slots();
      std::memcpy(region.Slot(slot).data(), text.data(), text.size());
      if (random() % 4 == 0) region.Slot(slot)[random() % text.size()] = static_cast<char>(random());
      SlotRequest call = {.method = 2, .bytes = static_cast<uint32_t>(text.size())};
      if (random() % 8 == 0) call.method = random();
      if (random() % 16 == 0) call.offset = random();
      if (random() % 16 == 0) call.bytes = random();
      call.caller.span = call.caller.trace_low = random() % 2;
      region.Call(slot, call);
      if (random() % 16 == 0) region.CancelCall(slot);
      if (random() % 8 == 0) absl::SleepFor(absl::Microseconds(100));
    }
    done = true;
    scribbler.join();
  }
  std::vector<float> values(kElements);
  EXPECT_TRUE(honest->Pull(0, {{1, absl::MakeSpan(values)}}).Get().ok());
  const absl::Time give_up = absl::Now() + absl::Seconds(60);
  const auto leaves = [&] { return StatusOf(*honest).shared_regions() < 2; };
  while (!leaves() && absl::Now() < give_up) absl::SleepFor(absl::Milliseconds(10));
  EXPECT_TRUE(leaves());
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
