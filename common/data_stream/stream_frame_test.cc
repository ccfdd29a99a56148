// SPDX-License-Identifier: Apache-2.0
#include "common/data_stream/stream_frame.h"

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/wire/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;

TEST(StreamFrameTest, IsDecodedAsEncoded) {
  StreamFrame frame;
  frame.number = 7;
  frame.subject = 5;
  frame.kind = StreamFrame::Kind::kResponse;
  frame.bytes = kMaxMessageBytes;
  frame.lead = 99;
  frame.caller = {1, 2, 3, true};
  const auto bytes = EncodeStreamFrame(frame);
  const absl::StatusOr<StreamFrame> decoded = DecodeStreamFrame({bytes.data(), bytes.size()});
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(*decoded, frame);
}

TEST(StreamFrameTest, RefusesOtherKindsAndSizes) {
  StreamFrame frame;
  frame.kind = static_cast<StreamFrame::Kind>(4);
  auto bytes = EncodeStreamFrame(frame);
  EXPECT_THAT(DecodeStreamFrame({bytes.data(), bytes.size()}).status().ToString(),
              HasSubstr("got kind 4, want 1 to 3"));
  frame = StreamFrame();
  frame.bytes = UINT32_MAX;
  bytes = EncodeStreamFrame(frame);
  EXPECT_THAT(DecodeStreamFrame({bytes.data(), bytes.size()}).status().ToString(), HasSubstr("4294967295 bytes, want"));
}

}  // namespace
}  // namespace ballast
