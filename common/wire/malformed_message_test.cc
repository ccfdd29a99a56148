// SPDX-License-Identifier: Apache-2.0
#include "common/wire/malformed_message.h"

#include <string>

#include "ballast/v1/coordinator_service.pb.h"
#include "common/status/error_reason.h"
#include "gmock/gmock.h"

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

}  // namespace
}  // namespace ballast
