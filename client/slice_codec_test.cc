// SPDX-License-Identifier: Apache-2.0
#include "client/slice_codec.h"

#include <string>

#include "gtest/gtest.h"

namespace ballast {
namespace {

class SliceCodecTest : public testing::Test {
 protected:
  SliceCodecTest() {
    v1::SliceValue* value = answer_.Add();
    value->set_tensor_id(4);
    value->set_slice_index(1);
    value->set_version(17);
    value->set_encoding(v1::ENCODING_FP32);
    const float sent[] = {1.5f, -2.0f};
    value->set_payload(sent, sizeof(sent));
  }

  std::vector<float> memory_ = {0, 0};
  std::vector<SliceTransfer> slices_ = {{4, 1, 2, 0, {}, absl::MakeSpan(memory_)}};
  google::protobuf::RepeatedPtrField<v1::SliceValue> answer_;
};

TEST_F(SliceCodecTest, WritesValuesAndReturnsVersions) {
  EXPECT_EQ(DecodeValues(answer_, slices_).value(), std::vector<uint64_t>({17}));
  EXPECT_EQ(memory_, std::vector<float>({1.5f, -2.0f}));
}

TEST_F(SliceCodecTest, RefusesPayloadOfWrongSize) {
  answer_[0].set_payload(std::string(7, 'x'));
  EXPECT_EQ(DecodeValues(answer_, slices_).status(),
            absl::InternalError("answer's tensor 4 slice 1 has 7 bytes, want 8"));
  EXPECT_EQ(memory_, std::vector<float>({0, 0}));
}

TEST_F(SliceCodecTest, RefusesAnotherSlice) {
  answer_[0].set_slice_index(0);
  EXPECT_EQ(DecodeValues(answer_, slices_).status(),
            absl::InternalError("answer holds tensor 4 slice 0, want tensor 4 slice 1"));
}

TEST_F(SliceCodecTest, RefusesUnknownEncoding) {
  answer_[0].set_encoding(static_cast<v1::Encoding>(99));
  EXPECT_EQ(DecodeValues(answer_, slices_).status(),
            absl::InternalError("answer's tensor 4 slice 1 has encoding 99, want fp32"));
}

TEST_F(SliceCodecTest, RefusesMissingSlices) {
  answer_.Clear();
  EXPECT_EQ(DecodeValues(answer_, slices_).status(), absl::InternalError("answer holds 0 slices, want 1"));
}

TEST_F(SliceCodecTest, WritesNothingWhenALaterSliceIsWrong) {
  std::vector<float> more = {0};
  slices_.push_back({5, 0, 1, 0, {}, absl::MakeSpan(more)});
  *answer_.Add() = answer_[0];
  EXPECT_FALSE(DecodeValues(answer_, slices_).ok());
  EXPECT_EQ(memory_, std::vector<float>({0, 0}));
}

TEST_F(SliceCodecTest, EncodesGradientBytesAndVersion) {
  const std::vector<float> gradient = {1.0f};
  const auto encoded = EncodeGradients({{2, 3, 1, 9, gradient, {}}});
  ASSERT_EQ(encoded.size(), 1);
  EXPECT_EQ(encoded[0].tensor_id(), 2);
  EXPECT_EQ(encoded[0].slice_index(), 3);
  EXPECT_EQ(encoded[0].version(), 9);
  EXPECT_EQ(encoded[0].encoding(), v1::ENCODING_FP32);
  EXPECT_EQ(encoded[0].payload(), std::string("\x00\x00\x80\x3f", 4));
}

}  // namespace
}  // namespace ballast
