// SPDX-License-Identifier: Apache-2.0
#include "client/message_packer.h"

#include <string>

#include "ballast/v1/parameter_service.pb.h"
#include "client/slice_message.h"
#include "common/tensor_spec.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

// One that is pushed, of floats.
SliceTransfer Slice(uint32_t tensor_id, uint64_t elements) {
  static const std::vector<float> memory(kMaxSliceElements);
  return {tensor_id, 0, elements, 0, absl::MakeConstSpan(memory).first(elements), {}};
}

TEST(MessagePackerTest, ManySmallTensorsShareOneMessage) {
  std::vector<SliceTransfer> slices;
  for (uint32_t id = 0; id < 1000; ++id) slices.push_back(Slice(id, 100));
  const auto messages = PackSlices(slices);
  ASSERT_EQ(messages.size(), 1);
  EXPECT_EQ(messages[0].size(), 1000);
}

TEST(MessagePackerTest, LargestSliceFitsOneMessage) {
  const auto messages = PackSlices({Slice(0, kMaxSliceElements), Slice(1, kMaxSliceElements)});
  ASSERT_EQ(messages.size(), 2);
  EXPECT_EQ(messages[0].size(), 1);
  EXPECT_EQ(messages[1].size(), 1);
}

// Three slices of 100 floats take 1,456 bytes with their message, of 100 halves 856.
TEST(MessagePackerTest, WhatTravelsIn16BitsIsCountedSo) {
  char halves[200];
  SliceTransfer pushed = Slice(0, 100), pulled = pushed;
  pushed.gradient = {};
  pushed.encoded_gradient = {v1::ENCODING_BF16, halves};
  pulled.gradient = {};
  pulled.encoded_values = {v1::ENCODING_BF16, absl::MakeSpan(halves)};
  SliceTransfer both = pushed;
  std::vector<float> values(100);
  both.values = absl::MakeSpan(values);
  EXPECT_EQ(PackSlices(std::vector<SliceTransfer>(3, pushed), /*max_bytes=*/1000).size(), 1);
  EXPECT_EQ(PackSlices(std::vector<SliceTransfer>(3, pulled), /*max_bytes=*/1000).size(), 1);
  // Its answer has floats.
  EXPECT_EQ(PackSlices(std::vector<SliceTransfer>(3, both), /*max_bytes=*/1000).size(), 3);
}

TEST(MessagePackerTest, AGradientThatAddsNothingTakesNoRoom) {
  SliceTransfer nothing = Slice(0, 1000);
  nothing.gradient = {};
  EXPECT_EQ(PackSlices(std::vector<SliceTransfer>(3, nothing), /*max_bytes=*/1000).size(), 1);
}

TEST(MessagePackerTest, KeepsTheOrder) {
  const auto messages = PackSlices({Slice(5, 10), Slice(3, 10), Slice(9, 10)}, /*max_bytes=*/450);
  ASSERT_EQ(messages.size(), 2);
  ASSERT_EQ(messages[0].size(), 2);
  EXPECT_EQ(messages[0][0].tensor_id, 5);
  EXPECT_EQ(messages[0][1].tensor_id, 3);
  EXPECT_EQ(messages[1][0].tensor_id, 9);
}

TEST(MessagePackerTest, NothingNeedsNoMessage) { EXPECT_TRUE(PackSlices({}).empty()); }

// The widest field values around as many payloads as the packer lets in.
TEST(MessagePackerTest, EncodedMessageStaysUnderTheLimit) {
  for (uint64_t elements : {uint64_t{1}, uint64_t{1000}, kMaxSliceElements}) {
    const std::vector<float> memory(elements, 1.0f);
    const SliceTransfer slice{UINT32_MAX, UINT32_MAX, elements, UINT64_MAX, memory, {}};
    const auto messages = PackSlices(std::vector<SliceTransfer>(100000 / (1 + elements / 100), slice));
    v1::PushPullRequest request;
    request.mutable_header()->set_job(std::string(63, 'j'));
    request.mutable_header()->set_worker(UINT32_MAX);
    request.mutable_header()->set_incarnation(UINT64_MAX);
    request.mutable_header()->set_sequence(UINT64_MAX);
    request.mutable_header()->set_step(UINT64_MAX);
    request.mutable_header()->set_examples(UINT32_MAX);
    request.set_wait_ms(UINT32_MAX);
    MemoryHold hold;
    const uint64_t bytes = EncodeGradients(request, messages[0], LendGradients(messages[0], hold)).Length();
    EXPECT_LE(bytes, kMaxMessageBytes) << elements;
    EXPECT_GT(bytes, kMaxMessageBytes / 4) << elements;
  }
}

}  // namespace
}  // namespace ballast
