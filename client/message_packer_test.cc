// SPDX-License-Identifier: Apache-2.0
#include "client/message_packer.h"

#include <string>

#include "ballast/v1/parameter_service.pb.h"
#include "client/slice_message.h"
#include "common/tensors/tensor_spec.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

SliceTransfer Slice(uint32_t tensor_id, uint64_t elements) { return {tensor_id, 0, elements, 0, {}, {}}; }

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

TEST(MessagePackerTest, KeepsTheOrder) {
  const auto messages = PackSlices({Slice(5, 10), Slice(3, 10), Slice(9, 10)}, /*max_bytes=*/450);
  ASSERT_EQ(messages.size(), 2);
  ASSERT_EQ(messages[0].size(), 2);
  EXPECT_EQ(messages[0][0].tensor_id, 5);
  EXPECT_EQ(messages[0][1].tensor_id, 3);
  EXPECT_EQ(messages[1][0].tensor_id, 9);
}

TEST(MessagePackerTest, NothingNeedsNoMessage) { EXPECT_TRUE(PackSlices({}).empty()); }

// Uses the widest field values and the largest number of payloads that the packer allows.
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
    request.mutable_header()->set_map_epoch(UINT64_MAX);
    request.mutable_header()->set_schedule_position(0.1);
    request.set_wait_ms(UINT32_MAX);
    MemoryHold hold;
    const uint64_t bytes = EncodeGradients(request, messages[0], LendGradients(messages[0], hold)).Length();
    EXPECT_LE(bytes, kMaxMessageBytes) << elements;
    EXPECT_GT(bytes, kMaxMessageBytes / 4) << elements;
  }
}

}  // namespace
}  // namespace ballast
