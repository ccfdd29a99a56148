// SPDX-License-Identifier: Apache-2.0
#include "common/wire/payload_message.h"

#include <random>
#include <string>
#include <vector>

#include "ballast/v1/parameter_service.pb.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using Push = PayloadMessage<v1::PushRequest, v1::SliceGradient>;
constexpr int kGradients = v1::PushRequest::kGradientsFieldNumber;

std::string Flatten(const grpc::ByteBuffer& buffer) {
  std::string all;
  for (absl::string_view piece : BytesOf(buffer).pieces) all.append(piece.data(), piece.size());
  return all;
}

v1::PushRequest Whole() {
  v1::PushRequest request;
  request.mutable_header()->set_job("job");
  request.mutable_header()->set_sequence(300);
  for (size_t bytes : {0u, 5u, 2048u, 2049u, 100000u}) {
    v1::SliceGradient* gradient = request.add_gradients();
    gradient->set_tensor_id(bytes);
    gradient->set_version(1 + bytes);
    std::string payload(bytes, ' ');
    for (size_t i = 0; i < bytes; ++i) payload[i] = static_cast<char>(i * 7 + bytes);
    gradient->set_payload(payload);
  }
  return request;
}

grpc::ByteBuffer Write(const v1::PushRequest& whole, bool aligns = false) {
  v1::PushRequest envelope = whole;
  envelope.clear_gradients();
  PayloadMessageWriter writer(envelope, aligns);
  for (v1::SliceGradient gradient : whole.gradients()) {
    const grpc::Slice payload(gradient.payload());
    gradient.clear_payload();
    writer.Add(kGradients, gradient, payload);
  }
  return writer.Finish();
}

absl::StatusOr<Push> Read(const std::vector<absl::string_view>& pieces) {
  return DecodePayloadMessage<v1::PushRequest, v1::SliceGradient>(pieces, kGradients, 1000);
}

void ExpectSame(const Push& got, const v1::PushRequest& want) {
  EXPECT_EQ(got.envelope.header().SerializeAsString(), want.header().SerializeAsString());
  ASSERT_EQ(got.items.size(), static_cast<size_t>(want.gradients_size()));
  for (size_t i = 0; i < got.items.size(); ++i) {
    v1::SliceGradient item = got.items[i].item;
    for (absl::string_view piece : got.items[i].payload) item.mutable_payload()->append(piece.data(), piece.size());
    EXPECT_EQ(item.SerializeAsString(), want.gradients(i).SerializeAsString()) << i;
  }
}

TEST(PayloadMessageTest, WritesWhatAnyProtobufReads) {
  for (const bool aligns : {false, true}) {
    v1::PushRequest read;
    ASSERT_TRUE(read.ParseFromString(Flatten(Write(Whole(), aligns))));
    EXPECT_EQ(read.SerializeAsString(), Whole().SerializeAsString());
  }
}

// All sizes around those at which a length gets another byte.
TEST(PayloadMessageTest, AlignsPayloadsToTheFirst) {
  for (const size_t around : {4u, 110u, 2048u, 16370u, (1u << 21) - 20}) {
    v1::PushRequest whole;
    whole.mutable_header()->set_job("job");
    for (size_t bytes = around; bytes < around + 25; ++bytes) {
      v1::SliceGradient* gradient = whole.add_gradients();
      gradient->set_tensor_id(bytes % 3 == 0 ? 1 : 1000);
      gradient->set_payload(std::string(bytes, 'p'));
    }
    const std::string bytes = Flatten(Write(whole, /*aligns=*/true));
    v1::PushRequest read;
    ASSERT_TRUE(read.ParseFromString(bytes));
    EXPECT_EQ(read.SerializeAsString(), whole.SerializeAsString());
    EXPECT_LT(bytes.size(), whole.ByteSizeLong() + 5 * whole.gradients_size());
    const auto message = Read({bytes}).value();
    ExpectSame(message, whole);
    for (const auto& item : message.items) {
      EXPECT_EQ((item.payload[0].data() - message.items[0].payload[0].data()) % 4, 0) << item.payload[0].size();
    }
  }
}

TEST(PayloadMessageTest, LongerPayloadsMayMissTheirPlaceButStayProtobuf) {
  v1::PushRequest whole;
  for (const size_t bytes : {7u, 3u << 20, 3u << 20, (3u << 20) + 1}) {
    whole.add_gradients()->set_payload(std::string(bytes, 'p'));
    whole.add_gradients()->set_tensor_id(bytes);
  }
  v1::PushRequest read;
  ASSERT_TRUE(read.ParseFromString(Flatten(Write(whole, /*aligns=*/true))));
  EXPECT_EQ(read.SerializeAsString(), whole.SerializeAsString());
}

TEST(PayloadMessageTest, ReadsWhatAnyProtobufWritesWhereverItIsCut) {
  const std::string bytes = Whole().SerializeAsString();
  for (size_t piece_bytes : {1u, 2u, 3u, 7u, 64u, 4096u, 1000000u}) {
    std::vector<absl::string_view> pieces;
    for (size_t at = 0; at < bytes.size(); at += piece_bytes)
      pieces.push_back(absl::string_view(bytes).substr(at, piece_bytes));
    pieces.push_back("");
    const auto message = Read(pieces).value();
    ExpectSame(message, Whole());
  }
}

TEST(PayloadMessageTest, PayloadsStayWhereTheyLie) {
  const std::string bytes = Whole().SerializeAsString();
  const auto message = Read({bytes}).value();
  for (const ItemWithPayload<v1::SliceGradient>& item : message.items) {
    for (absl::string_view piece : item.payload) {
      EXPECT_GE(piece.data(), bytes.data());
      EXPECT_LE(piece.data() + piece.size(), bytes.data() + bytes.size());
    }
  }
}

TEST(PayloadMessageTest, AnEmptyMessageHasNoItems) {
  const auto message = Read({}).value();
  EXPECT_TRUE(message.items.empty());
  EXPECT_EQ(Flatten(Write(v1::PushRequest())), "");
}

TEST(PayloadMessageTest, RefusesAMessageCutShort) {
  const std::string bytes = Whole().SerializeAsString();
  for (size_t length : {1u, 3u, 20u, 3000u, 100000u}) {
    const std::string cut = bytes.substr(0, length);
    v1::PushRequest read;
    ASSERT_FALSE(read.ParseFromString(cut)) << "the cut is between fields";
    EXPECT_EQ(Read({cut}).status().code(), absl::StatusCode::kInvalidArgument) << length;
  }
}

TEST(PayloadMessageTest, RefusesMoreItemsThanAllowed) {
  const std::string bytes = Whole().SerializeAsString();
  EXPECT_EQ(SplitPayloadMessage({bytes}, kGradients, 4).status().message(), "got a message of more than 4 slices");
}

TEST(PayloadMessageTest, AgreesWithProtobufOnRandomDamage) {
  std::mt19937 random(3);
  v1::PushRequest small = Whole();
  small.mutable_gradients()->DeleteSubrange(2, 3);
  const std::string bytes = small.SerializeAsString();
  for (int round = 0; round < 20000; ++round) {
    std::string damaged = bytes;
    for (int flips = 1 + random() % 3; flips > 0; --flips)
      damaged[random() % damaged.size()] = static_cast<char>(random());
    v1::PushRequest want;
    const bool parses = want.ParseFromString(damaged);
    const auto got = Read({damaged});
    // Stricter only for groups, which proto3 does not use.
    if (got.ok()) {
      ASSERT_TRUE(parses) << round;
      ASSERT_EQ(got->items.size(), static_cast<size_t>(want.gradients_size())) << round;
    }
  }
}

}  // namespace
}  // namespace ballast
