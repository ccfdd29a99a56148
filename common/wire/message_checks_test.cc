// SPDX-License-Identifier: Apache-2.0
#include "common/wire/message_checks.h"

#include <string>

#include "ballast/v1/coordinator_service.pb.h"
#include "ballast/v1/parameter_service.pb.h"
#include "common/status/error_reason.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using testing::_;
using testing::HasSubstr;

// Expects JoinRequest's error at the byte and in the field; empty: not named.
void ExpectMalformed(const std::string& bytes, const testing::Matcher<std::string>& offset, const std::string& field,
                     const std::string& text) {
  EXPECT_FALSE(v1::JoinRequest().ParseFromString(bytes));
  const absl::Status status = MalformedMessage(*v1::JoinRequest::descriptor(), bytes);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReasonOf(status), v1::ERROR_REASON_MALFORMED_MESSAGE);
  EXPECT_EQ(SubjectOf(status, "message"), "ballast.v1.JoinRequest");
  EXPECT_THAT(SubjectOf(status, "offset"), offset);
  EXPECT_EQ(SubjectOf(status, "field"), field);
  EXPECT_THAT(std::string(status.message()), HasSubstr(text));
}

TEST(MalformedMessageTest, NamesTheByteThatIsNoTag) {
  ExpectMalformed(std::string("\x08\x01\x00", 3), "2", "",
                  "got 3 bytes that are not a ballast.v1.JoinRequest: at byte 2: not a field tag");
}

TEST(MalformedMessageTest, NamesTheFieldThatIsCutOff) {
  v1::JoinRequest request;
  request.set_protocol_version(1);
  request.set_description("host, process 1");
  const std::string bytes = request.SerializeAsString();
  ExpectMalformed(bytes.substr(0, bytes.size() - 4), "2", "description",
                  "a length of 15 bytes, want at most the 11 that are left");
}

TEST(MalformedMessageTest, NamesAFieldWithinAMessageWithinTheMessage) {
  v1::JoinRequest request;
  request.mutable_job()->set_name("digits");
  std::string bytes = request.SerializeAsString();
  bytes.back() = '\xFF';
  ExpectMalformed(bytes, _, "job.name", "not UTF-8");
}

TEST(MalformedMessageTest, NamesANumberOfManyThatIsCutOff) {
  const std::string bytes("\x1a\x02\x01\x80", 4);
  EXPECT_FALSE(v1::AcquireLeaseRequest().ParseFromString(bytes));
  const absl::Status status = MalformedMessage(*v1::AcquireLeaseRequest::descriptor(), bytes);
  EXPECT_EQ(SubjectOf(status, "field"), "held_leases");
  EXPECT_EQ(SubjectOf(status, "offset"), "3");
}

TEST(MalformedMessageTest, NamesAWireTypeThatDoesNotExist) { ExpectMalformed("\x0f", _, "protocol_version", ""); }

constexpr size_t kLimit = 1000;

template <typename Message>
size_t Count(const std::string& bytes, size_t limit = kLimit) {
  return CountElements(*Message::descriptor(), bytes, limit);
}

std::string Repeat(const std::string& bytes, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += bytes;
  return all;
}

TEST(ElementCountTest, CountsMessagesAtEveryDepth) {
  v1::DeclareTensorsRequest request;
  request.set_job("job");
  for (int i = 0; i < 3; ++i) {
    v1::TensorDeclaration* tensor = request.add_tensors();
    tensor->mutable_spec()->set_id(i);
    tensor->mutable_spec()->mutable_optimizer()->mutable_sgd();
    tensor->add_slices();
    tensor->add_slices();
  }
  EXPECT_EQ(Count<v1::DeclareTensorsRequest>(request.SerializeAsString()), 3 * 6);
}

TEST(ElementCountTest, CountsNoNumbersAndNoSingleText) {
  v1::AcquireLeaseRequest request;
  for (int i = 0; i < 100; ++i) request.add_held_leases(i);
  request.set_wait_ms(7);
  EXPECT_EQ(Count<v1::AcquireLeaseRequest>(request.SerializeAsString()), 0u);
  v1::PauseRequest pause;
  pause.set_job("job");
  EXPECT_EQ(Count<v1::PauseRequest>(pause.SerializeAsString()), 0u);
}

TEST(ElementCountTest, CountsTextsOfARepeatedField) {
  v1::GetShardMapResponse response;
  response.mutable_map()->add_shards("a");
  response.mutable_map()->add_shards("");
  EXPECT_EQ(Count<v1::GetShardMapResponse>(response.SerializeAsString()), 3u);
}

TEST(ElementCountTest, StopsBehindTheLimit) {
  EXPECT_EQ(Count<v1::PullRequest>(Repeat(std::string("\x1a\x00", 2), 1000)), 1000u);
  EXPECT_EQ(Count<v1::PullRequest>(Repeat(std::string("\x1a\x00", 2), 1 << 20)), 1001u);
}

TEST(ElementCountTest, CountsFieldsThatTheMessageDoesNotHave) {
  // Field 14 as a number and as bytes; field 3, a message, as a number; a group that contains a number and a group.
  EXPECT_EQ(Count<v1::PullRequest>(std::string("\x70\x01\x72\x00\x18\x01", 6)), 3u);
  EXPECT_EQ(Count<v1::PullRequest>(std::string("\x73\x08\x01\x0b\x0c\x74", 6)), 3u);
}

TEST(ElementCountTest, AGroupHidesNothingBehindIt) {
  // Would be a malformed message outside the group.
  const std::string group("\x73\x1a\x01\xff\x74", 5);
  EXPECT_EQ(Count<v1::PullRequest>(group + Repeat(std::string("\x1a\x00", 2), 10)), 12u);
}

TEST(ElementCountTest, CountsUpToTheFirstFault) {
  EXPECT_EQ(Count<v1::PullRequest>(std::string("\x1a\x00\x1a\x07\x1a\x00", 6)), 2u);
  EXPECT_EQ(Count<v1::PullRequest>(std::string("\x1a\x00\x74\x1a\x00", 5)), 1u);
  EXPECT_EQ(Count<v1::PullRequest>(std::string("\x1a\x00\x00\x1a\x00", 5)), 1u);
}

TEST(ElementCountTest, RefusesMoreThanTheLimit) {
  const auto check = [](int count) {
    return CheckElements(*v1::PullRequest::descriptor(), Repeat(std::string("\x1a\x00", 2), count), kLimit);
  };
  EXPECT_EQ(check(1000), absl::OkStatus());
  const absl::Status status = check(1001);
  EXPECT_EQ(ReasonOf(status), v1::ERROR_REASON_INVALID_REQUEST);
  EXPECT_EQ(status.message(),
            "got a ballast.v1.PullRequest of 2002 bytes with more than 1000 messages and strings in it, want at most "
            "that");
}

}  // namespace

}  // namespace ballast
