// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/port/http2_inspector.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;

constexpr absl::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr uint8_t kData = 0, kHeaders = 1, kResetStream = 3, kSettings = 4, kPing = 6, kWindowUpdate = 8,
                  kContinuation = 9;
constexpr uint8_t kAcknowledges = 1, kEndHeaders = 4;

std::string Head(uint32_t size, uint8_t type, uint8_t flags = 0) {
  return {static_cast<char>(size >> 16),
          static_cast<char>(size >> 8),
          static_cast<char>(size),
          static_cast<char>(type),
          static_cast<char>(flags),
          0,
          0,
          0,
          1};
}
std::string Frame(uint32_t size, uint8_t type, uint8_t flags = 0) {
  return Head(size, type, flags) + std::string(size, 'x');
}

class Http2InspectorTest : public ::testing::Test {
 protected:
  Http2InspectorTest() { EXPECT_TRUE(Take(kPreface).ok()); }

  absl::Status Take(absl::string_view bytes) { return inspector_.Take(bytes, now_); }
  absl::Status Repeat(const std::string& frame, int times) {
    absl::Status status;
    for (int i = 0; i < times && status.ok(); ++i) status = Take(frame);
    return status;
  }

  absl::Time now_ = absl::UnixEpoch();
  Http2Inspector inspector_{Http2Inspector::Limits()};
};

TEST_F(Http2InspectorTest, LetsThroughWhatAClientOfTheServerSends) {
  std::string call = Frame(36, kSettings) + Frame(0, kSettings, kAcknowledges) + Frame(16384, kHeaders, kEndHeaders);
  for (int i = 0; i < 256; ++i) call += Frame(16384, kData);
  for (int i = 0; i < 10000; ++i) call += Frame(4, kWindowUpdate);
  EXPECT_EQ(Take(call), absl::OkStatus());
}

TEST_F(Http2InspectorTest, SeesTheSameInPiecesOfAnySize) {
  const std::string bytes = absl::StrCat(kPreface, Frame(6, kSettings), Frame(300, kHeaders),
                                         Frame(16000, kContinuation), Frame(85, kContinuation));
  for (const size_t piece : {1, 2, 7, 8, 9, 10, 4096}) {
    Http2Inspector inspector{Http2Inspector::Limits()};
    size_t taken = 0;
    while (taken < bytes.size() && inspector.Take(bytes.substr(taken, piece), now_).ok()) taken += piece;
    // It is refused once the last frame's head is complete.
    const size_t end = bytes.size() - 85;
    EXPECT_LT(taken, end) << piece;
    EXPECT_GE(taken + piece, end) << piece;
  }
}

TEST_F(Http2InspectorTest, RefusesOversizedHeadersByTheirLengthAlone) {
  const absl::Status status = Take(Head(16385, kHeaders));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("got 16385 bytes of headers in 1 frames, want at most 16384 in 8"));
}

TEST_F(Http2InspectorTest, RefusesContinuationsThatAddUpToTooMuch) {
  EXPECT_TRUE(Take(Frame(10000, kHeaders)).ok());
  EXPECT_TRUE(Take(Frame(6384, kContinuation)).ok());
  EXPECT_FALSE(Take(Head(1, kContinuation)).ok());
}

TEST_F(Http2InspectorTest, RefusesContinuationsWithoutEndEvenIfEmpty) {
  EXPECT_TRUE(Take(Frame(10, kHeaders)).ok());
  EXPECT_TRUE(Repeat(Frame(0, kContinuation), 7).ok());
  EXPECT_FALSE(Take(Frame(0, kContinuation)).ok());
}

TEST_F(Http2InspectorTest, CountsEachHeaderBlockAnew) {
  EXPECT_TRUE(Take(Frame(0, kSettings, kAcknowledges)).ok());
  EXPECT_EQ(Repeat(Frame(10000, kHeaders) + Frame(5000, kContinuation, kEndHeaders), 1000), absl::OkStatus());
}

TEST_F(Http2InspectorTest, RefusesManyCallsBeforeTheSettingsAreAcknowledged) {
  EXPECT_TRUE(Repeat(Frame(10, kHeaders, kEndHeaders), 128).ok());
  EXPECT_THAT(Take(Frame(10, kHeaders, kEndHeaders)).message(), HasSubstr("settings acknowledged first"));
}

TEST_F(Http2InspectorTest, RefusesFloodsOfFramesThatCarryNothing) {
  for (const uint8_t type : {kData, kResetStream, kSettings, kPing, uint8_t{200}}) {
    Http2Inspector inspector{Http2Inspector::Limits()};
    ASSERT_TRUE(inspector.Take(kPreface, now_).ok());
    for (int i = 0; i < 256; ++i) ASSERT_TRUE(inspector.Take(Frame(0, type), now_).ok()) << int{type};
    EXPECT_EQ(inspector.Take(Frame(0, type), now_).code(), absl::StatusCode::kResourceExhausted) << int{type};
  }
}

TEST_F(Http2InspectorTest, GivesBackWhatItTookFromTheFloodsAllowanceWithTime) {
  EXPECT_TRUE(Repeat(Frame(8, kPing), 256).ok());
  now_ += absl::Milliseconds(500);
  EXPECT_TRUE(Repeat(Frame(8, kPing), 128).ok());
  EXPECT_FALSE(Take(Frame(8, kPing)).ok());
}

TEST_F(Http2InspectorTest, RefusesWhatIsNoHttp2) {
  Http2Inspector inspector{Http2Inspector::Limits()};
  EXPECT_TRUE(inspector.Take("PRI * HTTP", now_).ok());
  EXPECT_EQ(inspector.Take("/1.1", now_).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(Http2InspectorTest, StaysRefused) {
  EXPECT_FALSE(Take(Head(16385, kHeaders)).ok());
  now_ += absl::Hours(1);
  EXPECT_FALSE(Take(Frame(8, kPing)).ok());
}

}  // namespace
}  // namespace ballast
