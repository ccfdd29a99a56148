// SPDX-License-Identifier: Apache-2.0
// A client that writes to the memory shared with a server by itself, whatever it likes, harms nobody.
#include <atomic>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <thread>

#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "ballast/v1/parameter_service.grpc.pb.h"
#include "common/shared_memory/message_pieces.h"
#include "common/shared_memory/shared_floats.h"
#include "common/shared_memory/shared_message.h"
#include "common/shared_memory/shared_region.h"
#include "common/wire/payload_message.h"
#include "grpcpp/create_channel.h"
#include "gtest/gtest.h"
#include "tests/testing/shared_memory.h"

namespace ballast {
namespace {

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
TEST(SharedMemoryStrangerTest, ValuesAreNotChangedWhileTheyAreRead) {
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
TEST(SharedMemoryStrangerTest, ServerSurvivesWhateverIsInPieces) {
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

// The sent message and the message in the slot are merged: if both have a field, the slot's value counts.
TEST(SharedMemoryStrangerTest, AnyFieldMayStandBesideTheBlock) {
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
TEST(SharedMemoryStrangerTest, ServerSurvivesWhateverLiesThere) {
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
TEST(SharedMemoryStrangerTest, ServerSurvivesWhateverIsCalledThere) {
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

}  // namespace
}  // namespace ballast
