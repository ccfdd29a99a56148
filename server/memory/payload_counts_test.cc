// SPDX-License-Identifier: Apache-2.0
#include "server/memory/payload_counts.h"

#include <gtest/gtest.h>

namespace ballast {
namespace {

TEST(PayloadCountsTest, MessagesAddUpByCodec) {
  PayloadCounts counts;
  MessagePayloads first, second;
  first.Add(v1::ENCODING_FP16, 20, 10);
  first.Add(v1::ENCODING_FP16, 6, 3);
  first.Add(v1::ENCODING_FP32, 8, 2);
  second.Add(v1::ENCODING_UNSPECIFIED, 4, 1);
  counts.Add(first);
  counts.Add(second);
  EXPECT_EQ(counts.encoded(), 38u);
  v1::GetStatusResponse status;
  counts.Describe("push", status);
  ASSERT_EQ(status.payloads_size(), 2);
  EXPECT_EQ(status.payloads(0).direction(), "push");
  EXPECT_EQ(status.payloads(0).codec(), "fp32");
  EXPECT_EQ(status.payloads(0).encoded_bytes(), 12u);
  EXPECT_EQ(status.payloads(0).plain_bytes(), 12u);
  EXPECT_EQ(status.payloads(1).codec(), "fp16");
  EXPECT_EQ(status.payloads(1).encoded_bytes(), 26u);
  EXPECT_EQ(status.payloads(1).plain_bytes(), 52u);
}

TEST(PayloadCountsTest, CodecsThatWereNotUsedAreLeftOut) {
  PayloadCounts counts;
  counts.Add(MessagePayloads());
  v1::GetStatusResponse status;
  counts.Describe("pull", status);
  EXPECT_EQ(status.payloads_size(), 0);
}

}  // namespace
}  // namespace ballast
