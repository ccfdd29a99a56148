// SPDX-License-Identifier: Apache-2.0
#include "common/shared_memory/shared_message.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "common/wire/payload_message.h"

namespace ballast {
namespace {

v1::SharedSlot MakeReference(uint32_t offset, uint32_t bytes) {
  v1::SharedSlot reference;
  reference.set_region(0xfedcba9876543210);
  reference.set_slot(59);
  reference.set_offset(offset);
  reference.set_bytes(bytes);
  return reference;
}

grpc::ByteBuffer BufferOf(const std::string& text) {
  const grpc::Slice slice(text);
  return grpc::ByteBuffer(&slice, 1);
}

TEST(SharedMessageTest, CopiesAMessageSoThatItsFirstLargePayloadIsAligned) {
  std::vector<grpc::Slice> slices = {grpc::Slice("header"), grpc::Slice(std::string(5000, 'p')), grpc::Slice("end")};
  alignas(64) static char slot[8192];
  const std::optional<MessageSpot> spot =
      CopyMessage(grpc::ByteBuffer(slices.data(), slices.size()), absl::MakeSpan(slot));
  ASSERT_TRUE(spot.has_value());
  EXPECT_EQ(spot->bytes, 5009u);
  EXPECT_EQ((spot->offset + 6) % 64, 0u);
  EXPECT_EQ(std::string(slot + spot->offset, 6), "header");
  EXPECT_EQ(std::string(slot + spot->offset + 5006, 3), "end");
}

TEST(SharedMessageTest, DoesNotCopyWhatIsLargerThanTheBlock) {
  char slot[128];
  EXPECT_TRUE(CopyMessage(BufferOf(std::string(64, 'a')), absl::MakeSpan(slot)).has_value());
  EXPECT_FALSE(CopyMessage(BufferOf(std::string(65, 'a')), absl::MakeSpan(slot)).has_value());
}

TEST(SharedMessageTest, FindsTheReferenceThatWasEncoded) {
  const v1::SharedSlot reference = MakeReference(4000000, 4194304);
  const std::optional<v1::SharedSlot> found = FindReference(EncodeReference(reference));
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->SerializeAsString(), reference.SerializeAsString());
}

TEST(SharedMessageTest, ReferenceIsAMessageOfAnyOfTheTypesThatHaveIt) {
  const grpc::ByteBuffer buffer = EncodeReference(MakeReference(1, 2));
  const auto push = DecodeMessage<v1::PushRequest>(BytesOf(buffer));
  const auto pull = DecodeMessage<v1::PullResponse>(BytesOf(buffer));
  ASSERT_TRUE(push.ok() && pull.ok());
  EXPECT_EQ(push->in_shared_memory().slot(), 59u);
  EXPECT_EQ(pull->in_shared_memory().bytes(), 2u);
}

TEST(SharedMessageTest, FindsNoReferenceInOtherMessages) {
  v1::PullRequest pull;
  EXPECT_FALSE(FindReference(EncodeMessage(pull)).has_value());
  pull.set_job("job");
  EXPECT_FALSE(FindReference(EncodeMessage(pull)).has_value());
  EXPECT_FALSE(FindReference(BufferOf("\x82\x01")).has_value());
  EXPECT_FALSE(FindReference(BufferOf(std::string("\x82\x01\x05\x01\x01", 5))).has_value());
  EXPECT_FALSE(FindReference(BufferOf(std::string("\x82\x01\x02\xff\xff", 5))).has_value());
}

TEST(SharedMessageTest, FindsAReferenceBesideOtherFields) {
  v1::PullRequest pull;
  pull.set_job("job");
  pull.add_slices()->set_tensor_id(7);
  *pull.mutable_in_shared_memory() = MakeReference(1, 2);
  const std::optional<v1::SharedSlot> found = FindReference(EncodeMessage(pull));
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->slot(), 59u);
}

TEST(SharedMessageTest, RefusesAReferenceBeyondItsBlock) {
  char slot[128] = "abc";
  EXPECT_EQ(*MessageAt({1, 2}, absl::MakeSpan(slot)), "bc");
  EXPECT_TRUE(MessageAt({0, 128}, absl::MakeSpan(slot)).ok());
  for (const MessageSpot& bad :
       {MessageSpot{0, 129}, MessageSpot{128, 1}, MessageSpot{UINT32_MAX, UINT32_MAX}, MessageSpot{129, 0}}) {
    const auto message = MessageAt(bad, absl::MakeSpan(slot));
    EXPECT_TRUE(absl::IsInvalidArgument(message.status())) << message.status();
  }
}

}  // namespace
}  // namespace ballast
