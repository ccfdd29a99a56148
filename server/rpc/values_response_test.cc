// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/values_response.h"

#include <utility>
#include <vector>

#include "ballast/v1/parameter_service.pb.h"
#include "common/codecs/payload_reader.h"
#include "common/concurrency/clock.h"
#include "common/wire/payload_message.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

// A shard with tensor 1 of 4 elements, which gRPC copies, and tensor 2 of 2000, which it sends from where they are.
class ValuesResponseTest : public ::testing::Test {
 protected:
  ValuesResponseTest() {
    JobConfig job{.name = "job", .workers = 1};
    job.policy.mutable_async();
    std::vector<OwnedTensor> tensors(2);
    for (uint32_t i = 0; i < 2; ++i) {
      tensors[i].spec.set_id(i + 1);
      tensors[i].spec.set_name(i == 0 ? "small" : "large");
      tensors[i].spec.add_shape(i == 0 ? 4 : 2000);
      tensors[i].spec.mutable_initializer()->mutable_constant()->set_value(2.5f);
      tensors[i].spec.mutable_optimizer()->mutable_sgd()->set_learning_rate(0.1f);
    }
    const auto declared = shard_.Declare(job, std::move(tensors));
    EXPECT_TRUE(declared.ok()) << declared.status();
  }

  absl::StatusOr<ValuesResponse> Encode(std::vector<SliceKey> keys, v1::Encoding encoding) {
    return EncodeValues(shard_, keys, std::nullopt, **FindCodec(encoding), budget_, v1::PullResponse(),
                        v1::PullResponse::kValuesFieldNumber);
  }

  ManualClock clock_;
  ParameterShard shard_{ParameterShard::Options{.max_state_bytes = 1 << 20}, &clock_};
  ByteBudget budget_{64 << 10};
};

TEST_F(ValuesResponseTest, EncodesTheValuesOfEachSliceInItsEncoding) {
  constexpr struct {
    v1::Encoding encoding;
    size_t element_bytes;
  } kCases[] = {{v1::ENCODING_FP32, 4}, {v1::ENCODING_BF16, 2}};
  for (const auto& c : kCases) {
    const absl::StatusOr<ValuesResponse> response = Encode({{2, 0}, {1, 0}}, c.encoding);
    ASSERT_TRUE(response.ok()) << response.status();
    const ReceivedBytes bytes = BytesOf(response->bytes);
    const auto message =
        DecodePayloadMessage<v1::PullResponse, v1::SliceValue>(bytes.pieces, v1::PullResponse::kValuesFieldNumber, 10);
    ASSERT_TRUE(message.ok()) << message.status();
    ASSERT_EQ(message->items.size(), 2u);
    EXPECT_EQ(message->items[0].item.tensor_id(), 2u);
    EXPECT_EQ(message->items[0].item.encoding(), c.encoding);
    EXPECT_EQ(PayloadBytes(message->items[0].payload), 2000 * c.element_bytes);
    PayloadCounts counts;
    counts.Add(response->payload);
    v1::GetStatusResponse counted;
    counts.Describe("pull", counted);
    EXPECT_EQ(counted.payloads(0).encoded_bytes(), 2004 * c.element_bytes);
    EXPECT_EQ(counted.payloads(0).plain_bytes(), 2004 * sizeof(float));
    EXPECT_EQ(message->items[1].item.tensor_id(), 1u);
    EXPECT_EQ(PayloadBytes(message->items[1].payload), 4 * c.element_bytes);
  }
}

TEST_F(ValuesResponseTest, RefusesAnEncodingForGradientsOnly) {
  EXPECT_TRUE(ValueCodec(v1::ENCODING_INT8).ok());
  EXPECT_EQ(ValueCodec(v1::ENCODING_TOP_K).status().message(),
            "encoding of values: got top_k, which is for gradients only");
}

TEST_F(ValuesResponseTest, CountsTheValuesUntilTheLastOfThemIsSent) {
  for (v1::Encoding encoding : {v1::ENCODING_FP32, v1::ENCODING_BF16}) {
    absl::StatusOr<ValuesResponse> response = Encode({{2, 0}}, encoding);
    ASSERT_TRUE(response.ok()) << response.status();
    EXPECT_EQ(budget_.used(), ByteBudget::kCallBytes);
    response->reservation.reset();
    EXPECT_EQ(budget_.used(), ByteBudget::kCallBytes);
    response->bytes.Clear();
    EXPECT_EQ(budget_.used(), 0u);
  }
}

TEST_F(ValuesResponseTest, RefusesValuesForWhichTheBudgetHasNoRoom) {
  const absl::StatusOr<ByteBudget::Reservation> rest = budget_.Reserve(budget_.limit());
  EXPECT_EQ(Encode({{1, 0}}, v1::ENCODING_FP32).status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace ballast
