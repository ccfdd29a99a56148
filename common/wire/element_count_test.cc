// SPDX-License-Identifier: Apache-2.0
#include "common/wire/element_count.h"

#include <string>

#include "ballast/v1/coordinator_service.pb.h"
#include "ballast/v1/parameter_service.pb.h"
#include "common/status/error_reason.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

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
