// SPDX-License-Identifier: Apache-2.0
#include "client/slice_message.h"

#include <cstring>
#include <future>
#include <optional>
#include <string>

#include "ballast/v1/parameter_service.pb.h"
#include "common/tensors/tensor_spec.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

class SliceMessageTest : public testing::Test {
 protected:
  SliceMessageTest() {
    ItemWithPayload<v1::SliceValue>& value = answer_.emplace_back();
    value.item.set_tensor_id(4);
    value.item.set_slice_index(1);
    value.item.set_version(17);
    value.item.set_encoding(v1::ENCODING_FP32);
    // The split is inside an element.
    const absl::string_view bytes(reinterpret_cast<const char*>(sent_), sizeof(sent_));
    value.payload = {bytes.substr(0, 3), bytes.substr(3)};
  }

  const float sent_[2] = {1.5f, -2.0f};
  std::vector<float> memory_ = {0, 0};
  std::vector<SliceTransfer> slices_ = {{4, 1, 2, 0, {}, absl::MakeSpan(memory_)}};
  std::vector<ItemWithPayload<v1::SliceValue>> answer_;
};

TEST_F(SliceMessageTest, WritesValuesAndReturnsVersions) {
  EXPECT_EQ(DecodeValues(answer_, slices_, false).value(), std::vector<uint64_t>({17}));
  EXPECT_EQ(memory_, std::vector<float>({1.5f, -2.0f}));
}

TEST_F(SliceMessageTest, RefusesPayloadOfWrongSize) {
  answer_[0].payload = {"1234567"};
  EXPECT_EQ(DecodeValues(answer_, slices_, false).status(),
            absl::InternalError("response: tensor 4 slice 1 has 7 bytes of fp32, want 8"));
  EXPECT_EQ(memory_, std::vector<float>({0, 0}));
}

TEST_F(SliceMessageTest, RefusesAnotherSlice) {
  answer_[0].item.set_slice_index(0);
  EXPECT_EQ(DecodeValues(answer_, slices_, false).status(),
            absl::InternalError("response has tensor 4 slice 0, want tensor 4 slice 1"));
}

TEST_F(SliceMessageTest, RefusesUnknownEncoding) {
  answer_[0].item.set_encoding(static_cast<v1::Encoding>(99));
  EXPECT_EQ(DecodeValues(answer_, slices_, false).status(),
            absl::InternalError(
                "response: tensor 4 slice 1: unknown encoding 99, want one of fp32, fp16, bf16, int8, top_k, sign"));
}

TEST_F(SliceMessageTest, RefusesMissingSlices) {
  answer_.clear();
  EXPECT_EQ(DecodeValues(answer_, slices_, false).status(), absl::InternalError("response has 0 slices, want 1"));
}

TEST_F(SliceMessageTest, WritesNothingWhenALaterSliceIsWrong) {
  std::vector<float> more = {0};
  slices_.push_back({5, 0, 1, 0, {}, absl::MakeSpan(more)});
  answer_.push_back(answer_[0]);
  EXPECT_FALSE(DecodeValues(answer_, slices_, false).ok());
  EXPECT_EQ(memory_, std::vector<float>({0, 0}));
}

TEST_F(SliceMessageTest, APayloadThatIsInItsPlaceStaysThere) {
  v1::SliceValue item = answer_[0].item;
  const auto place = [&](size_t index, uint64_t bytes) {
    return PlaceOfValues(slices_, index, item.SerializeAsString(), bytes);
  };
  char* const memory = reinterpret_cast<char*>(memory_.data());
  ASSERT_EQ(place(0, sizeof(sent_)), memory);
  std::memcpy(memory, sent_, sizeof(sent_));
  answer_[0].payload = {absl::string_view(memory, sizeof(sent_))};
  EXPECT_EQ(DecodeValues(answer_, slices_, false).value(), std::vector<uint64_t>({17}));
  EXPECT_EQ(memory_, std::vector<float>({1.5f, -2.0f}));
  // What the slice does not ask for, or not in this form, has no place.
  EXPECT_EQ(place(1, sizeof(sent_)), nullptr);
  EXPECT_EQ(place(0, sizeof(sent_) - 1), nullptr);
  item.set_slice_index(2);
  EXPECT_EQ(place(0, sizeof(sent_)), nullptr);
  item = answer_[0].item;
  item.set_encoding(v1::ENCODING_BF16);
  EXPECT_EQ(place(0, sizeof(sent_) / 2), nullptr);
  EXPECT_EQ(PlaceOfValues(slices_, 0, "\x0b", sizeof(sent_)), nullptr);
  item = answer_[0].item;
  // A gradient may have to be sent again.
  slices_[0].gradient = absl::MakeConstSpan(memory_).subspan(1);
  EXPECT_EQ(place(0, sizeof(sent_)), nullptr);
  const std::vector<float> apart(2);
  slices_[0].gradient = apart;
  EXPECT_EQ(place(0, sizeof(sent_)), memory);
  // Values that are wanted in another encoding.
  char encoded[4] = {};
  slices_[0].encoded_values = {v1::ENCODING_BF16, absl::MakeSpan(encoded)};
  EXPECT_EQ(place(0, sizeof(sent_)), nullptr);
}

// Notes what it stores.
class NotingCopier : public ElementCopier {
 public:
  absl::Status Fetch(size_t, absl::Span<float>) override { return absl::UnimplementedError("no gradient"); }
  absl::Status Store(size_t offset, absl::Span<const float> from) override {
    offset_ = offset;
    from_ = from.data();
    values_.assign(from.begin(), from.end());
    return status_;
  }

  absl::Status status_;
  size_t offset_ = 0;
  const float* from_ = nullptr;
  std::vector<float> values_;
};

TEST_F(SliceMessageTest, ACopierReadsSharedMemoryItself) {
  NotingCopier copier;
  slices_[0].offset = 7;
  slices_[0].values_copier = &copier;
  answer_[0].payload = {absl::string_view(reinterpret_cast<const char*>(sent_), sizeof(sent_))};
  EXPECT_EQ(DecodeValues(answer_, slices_, true).value(), std::vector<uint64_t>({17}));
  EXPECT_EQ(copier.offset_, 7u);
  EXPECT_EQ(copier.from_, sent_);
  EXPECT_EQ(memory_, std::vector<float>({0, 0}));
}

TEST_F(SliceMessageTest, OtherwiseACopierGetsTheDecodedValues) {
  NotingCopier copier;
  slices_[0].values_copier = &copier;
  // In two pieces, or received.
  for (const bool in_shared_memory : {true, false}) {
    EXPECT_TRUE(DecodeValues(answer_, slices_, in_shared_memory).ok());
    EXPECT_EQ(copier.from_, memory_.data());
    EXPECT_EQ(copier.values_, std::vector<float>({1.5f, -2.0f}));
    answer_[0].payload = {absl::string_view(reinterpret_cast<const char*>(sent_), sizeof(sent_))};
  }
  copier.status_ = absl::InternalError("no device");
  EXPECT_EQ(DecodeValues(answer_, slices_, false).status(),
            absl::InternalError("response: tensor 4 slice 1: no device"));
}

TEST_F(SliceMessageTest, CopiesEncodedValuesAsTheyCame) {
  char encoded[4] = {};
  slices_[0].values = {};
  slices_[0].encoded_values = {v1::ENCODING_BF16, absl::MakeSpan(encoded)};
  answer_[0].item.set_encoding(v1::ENCODING_BF16);
  // The split is inside an element.
  answer_[0].payload = {"\xc0", "\x3f\x01\xc0"};
  EXPECT_EQ(DecodeValues(answer_, slices_, false).value(), std::vector<uint64_t>({17}));
  EXPECT_EQ(std::string(encoded, 4), "\xc0\x3f\x01\xc0");
}

TEST_F(SliceMessageTest, RefusesValuesInAnotherEncodingThanTheirMemorys) {
  char encoded[4] = {};
  slices_[0].values = {};
  slices_[0].encoded_values = {v1::ENCODING_BF16, absl::MakeSpan(encoded)};
  EXPECT_EQ(DecodeValues(answer_, slices_, false).status(),
            absl::InternalError("response: tensor 4 slice 1 is fp32, want bf16"));
}

TEST_F(SliceMessageTest, LendsAnEncodedGradientAndEncodesTheOther) {
  const std::vector<float> gradient = {1.0f};
  const char encoded[2] = {'\x80', '\x3f'};
  std::vector<SliceTransfer> slices = {{2, 0, 1, 9, gradient, {}}, {3, 0, 1, 9, {}, {}}};
  slices[1].encoded_gradient = {v1::ENCODING_BF16, encoded};
  v1::Codec config;
  config.set_gradients(v1::ENCODING_BF16);
  ErrorFeedback feedback(MakeGradientCodec(config).value());
  MemoryHold hold;
  const std::vector<GradientPayload> payloads = EncodePayloads(slices, 1, feedback, hold);
  ASSERT_EQ(payloads.size(), 2u);
  for (const GradientPayload& payload : payloads) {
    EXPECT_EQ(payload.encoding, v1::ENCODING_BF16);
    EXPECT_EQ(std::string(payload.bytes.begin(), payload.bytes.end()), std::string(encoded, 2));
  }
}

TEST_F(SliceMessageTest, SendsALargeEncodedGradientFromWhereItLies) {
  const std::vector<char> encoded(100000);
  std::vector<SliceTransfer> slices = {{2, 3, 50000, 9, {}, {}}};
  slices[0].encoded_gradient = {v1::ENCODING_BF16, encoded};
  v1::Codec config;
  config.set_gradients(v1::ENCODING_BF16);
  ErrorFeedback feedback(MakeGradientCodec(config).value());
  MemoryHold hold;
  const std::vector<GradientPayload> payloads = EncodePayloads(slices, 1, feedback, hold);
  EXPECT_EQ(payloads[0].bytes.begin(), reinterpret_cast<const uint8_t*>(encoded.data()));
  EXPECT_EQ(payloads[0].bytes.size(), 100000u);
}

TEST_F(SliceMessageTest, EncodesGradientBytesAndVersion) {
  const std::vector<float> gradient = {1.0f};
  const std::vector<SliceTransfer> slices = {{2, 3, 1, 9, gradient, {}}};
  MemoryHold hold;
  const grpc::ByteBuffer buffer = EncodeGradients(v1::PushRequest(), slices, LendGradients(slices, hold));
  const auto request = DecodeMessage<v1::PushRequest>(BytesOf(buffer));
  ASSERT_TRUE(request.ok()) << request.status();
  ASSERT_EQ(request->gradients_size(), 1);
  EXPECT_EQ(request->gradients(0).tensor_id(), 2u);
  EXPECT_EQ(request->gradients(0).slice_index(), 3u);
  EXPECT_EQ(request->gradients(0).version(), 9u);
  EXPECT_EQ(request->gradients(0).encoding(), v1::ENCODING_FP32);
  EXPECT_EQ(request->gradients(0).payload(), std::string("\x00\x00\x80\x3f", 4));
}

TEST_F(SliceMessageTest, SendsALargeGradientFromWhereItLies) {
  const std::vector<float> gradient(100000, 1.0f);
  const std::vector<SliceTransfer> slices = {{2, 3, 100000, 9, gradient, {}}};
  MemoryHold hold;
  const grpc::ByteBuffer buffer = EncodeGradients(v1::PushRequest(), slices, LendGradients(slices, hold));
  bool found = false;
  for (const grpc::Slice& slice : BytesOf(buffer).slices) {
    found = found || slice.begin() == reinterpret_cast<const uint8_t*>(gradient.data());
  }
  EXPECT_TRUE(found);
}

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

TEST(MessagePackerTest, AnOperationIsAFewMessages) {
  const std::vector<SliceTransfer> cut(4, Slice(0, kMinCutElements));
  EXPECT_EQ(PackSlices(cut, MessageBytes(cut)).size(), 2);
  EXPECT_EQ(MessageBytes({}), MessageBytes({Slice(0, 1000)}));
  EXPECT_EQ(MessageBytes(std::vector<SliceTransfer>(8, Slice(0, 1 << 19))), 2 << 20);
  EXPECT_EQ(MessageBytes(std::vector<SliceTransfer>(100, Slice(0, kMaxSliceElements))), kMaxMessageBytes);
}

// A layer's bias follows its weights.
TEST(MessagePackerTest, SmallSlicesEndAMessage) {
  std::vector<SliceTransfer> layer(6, Slice(0, 66'901));
  layer.push_back(Slice(1, 512));
  const auto messages = PackSlices(layer, /*bytes_wanted=*/256 << 10);
  ASSERT_EQ(messages.size(), 6);
  EXPECT_EQ(messages[5].size(), 2);
  // An eighth is no longer small, and neither are many that are.
  EXPECT_EQ(PackSlices({Slice(0, 66'901), Slice(1, 8192)}, 256 << 10).size(), 2);
  layer.insert(layer.end(), 16, Slice(2, 1024));
  EXPECT_EQ(PackSlices(layer, 256 << 10).size(), 7);
}

TEST(MessagePackerTest, SmallSlicesMakeNoMessageTooLarge) {
  std::vector<SliceTransfer> slices(3, Slice(0, kMaxSliceElements));
  for (int i = 0; i < 1000; ++i) slices.push_back(Slice(1, 1024));
  for (const uint64_t wanted : {kMaxMessageBytes, kMaxMessageBytes - (100 << 10)}) {
    for (const auto& message : PackSlices(slices, wanted)) {
      uint64_t bytes = 0;
      for (const SliceTransfer& slice : message) bytes += sizeof(float) * slice.elements;
      EXPECT_LT(bytes, kMaxMessageBytes);
    }
  }
}

TEST(MessagePackerTest, KeepsTheOrder) {
  const auto messages = PackSlices({Slice(5, 10), Slice(3, 10), Slice(9, 10)}, /*bytes_wanted=*/450);
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

TEST(MemoryHoldTest, CallsAtOnceWhenNothingIsLent) {
  MemoryHold hold;
  bool called = false;
  hold.WhenBack([&] { called = true; });
  EXPECT_TRUE(called);
}

TEST(MemoryHoldTest, CallsWhenTheLastCopyIsBack) {
  MemoryHold hold;
  const char memory[] = "0123456789012345678901234567890123456789";
  std::optional<grpc::Slice> first = hold.Lend(memory, sizeof(memory));
  std::optional<grpc::Slice> copy = *first;
  EXPECT_EQ(first->begin(), reinterpret_cast<const uint8_t*>(memory));
  std::promise<void> back;
  std::future<void> future = back.get_future();
  hold.WhenBack([&] { back.set_value(); });
  first.reset();
  EXPECT_EQ(future.wait_for(std::chrono::milliseconds(0)), std::future_status::timeout);
  copy.reset();
  EXPECT_EQ(future.wait_for(std::chrono::seconds(30)), std::future_status::ready);
}

}  // namespace

}  // namespace ballast
