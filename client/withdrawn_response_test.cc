// SPDX-License-Identifier: Apache-2.0
// A server that ends takes back the memory that its responses lend: what a client has read there meanwhile is worth
// nothing, and it asks again.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "client/client.h"
#include "client/testing/fake_parameter_service.h"
#include "client/testing/fake_server.h"
#include "common/shared_memory/message_pieces.h"
#include "common/shared_memory/shared_floats.h"
#include "common/shared_memory/shared_region.h"
#include "common/wire/payload_message.h"

namespace ballast {
namespace {

constexpr size_t kElements = 5000;

// Answers pulls in shared memory with values of 7, which it has taken back by then, and all other calls as a shard.
class EndingService : public FakeParameterService {
 public:
  EndingService() { std::fill_n(values_.data(), kElements, 7.0f); }

  grpc::Status ShareMemory(grpc::ServerContext* context, const v1::ShareMemoryRequest*,
                           grpc::ServerWriter<v1::ShareMemoryResponse>* writer) override {
    const std::shared_ptr<SharedRegion> region = *SharedRegion::Create(2);
    region->OfferCalls(/*takes_pieces=*/false);
    v1::ShareMemoryResponse response;
    *response.mutable_region() = region->Describe();
    *response.mutable_heap() = ToProto(*SharedHeap::OfProcess().Describe());
    writer->Write(response);
    while (!context->IsCancelled()) {
      const uint32_t seen = region->server_bell().rings();
      for (uint32_t slot = 0; slot < region->slots(); ++slot) {
        if (region->TakeCall(slot).has_value()) Answer(*region, slot);
      }
      region->server_bell().Wait(seen, absl::Milliseconds(10));
    }
    return grpc::Status::OK;
  }

  int answered() const { return answered_; }

 private:
  void Answer(SharedRegion& region, uint32_t slot) {
    v1::SliceValue value;
    value.set_tensor_id(1);
    value.set_encoding(v1::ENCODING_FP32);
    PayloadMessageWriter writer{v1::PullResponse()};
    writer.Add(v1::PullResponse::kValuesFieldNumber, value,
               grpc::Slice(values_.data(), kElements * sizeof(float), [](void*) {}));
    const MessageSpot list = *WritePieces(writer.Finish(), SharedHeap::OfProcess(), region.Slot(slot));
    // As v1.SharedRegion says.
    char* const line = region.memory().data() + 64 * (slot + 1);
    const auto word = [&](size_t at) { return reinterpret_cast<std::atomic<uint32_t>*>(line + at); };
    *word(8) = list.offset;
    *word(12) = list.bytes;
    *word(44) = grpc::OK;
    *word(56) = 3;
    *word(0) = 4;
    ++answered_;
    region.client_bell().Ring();
  }

  SharedFloats values_{kElements};
  std::atomic<int> answered_{0};
};

TEST(WithdrawnResponseTest, IsAskedForAgain) {
  EndingService service;
  const FakeServer server(&service);
  ClientOptions options;
  options.shards = {server.address()};
  options.job = "job";
  options.policy.mutable_async();
  options.workers = 1;
  const std::unique_ptr<Client> client = *Client::Connect(options);
  v1::TensorSpec spec;
  spec.set_id(1);
  spec.set_name("w");
  spec.add_shape(kElements);
  spec.mutable_initializer()->mutable_zeros();
  spec.mutable_optimizer()->mutable_sgd()->set_learning_rate(1);
  const absl::Status declared = client->Declare({spec});
  ASSERT_TRUE(declared.ok()) << declared;
  const absl::Time give_up = absl::Now() + absl::Minutes(1);
  while (service.answered() < 3 && absl::Now() < give_up) {
    std::vector<float> values(kElements, 1);
    const auto pulled = client->Pull(0, {{1, absl::MakeSpan(values)}}).Get();
    ASSERT_TRUE(pulled.ok()) << pulled.status();
    EXPECT_EQ(values, std::vector<float>(kElements)) << "the values of the second answer";
  }
  EXPECT_GE(service.answered(), 3);
}

}  // namespace
}  // namespace ballast
