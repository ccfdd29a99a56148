// SPDX-License-Identifier: Apache-2.0
#include "common/shared_memory/message_pieces.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/wire/limits.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;

constexpr size_t kPage = SharedHeap::kLeastBytes;

struct Piece {
  uint64_t offset;
  uint32_t bytes;
  uint32_t place;
};

class MessagePiecesTest : public ::testing::Test {
 protected:
  // Returns memory of the heap with that content.
  absl::string_view Lent(const std::string& text) {
    char* const memory = static_cast<char*>(heap_.Allocate(std::max(text.size(), kPage)));
    std::memcpy(memory, text.data(), text.size());
    return {memory, text.size()};
  }

  grpc::ByteBuffer Message(const std::vector<absl::string_view>& pieces) {
    std::vector<grpc::Slice> slices;
    for (absl::string_view piece : pieces) {
      slices.emplace_back(const_cast<char*>(piece.data()), piece.size(), [](void*) {});
    }
    return grpc::ByteBuffer(slices.data(), slices.size());
  }

  absl::StatusOr<std::vector<BufferPool::Buffer>> Read(MessageSpot spot) {
    const auto reader = *SharedHeapReader::Open(*heap_.Describe());
    return ReadPieces(spot, absl::MakeSpan(slot_), *reader, pool_);
  }

  // Both ways of reading must agree.
  std::string ReadAll(MessageSpot spot) {
    const auto copy = Read(spot);
    EXPECT_TRUE(copy.ok()) << copy.status();
    const auto view = *SharedHeapView::Open(*heap_.Describe());
    const auto pieces = ViewPieces(spot, absl::MakeSpan(slot_), *view);
    EXPECT_TRUE(pieces.ok()) << pieces.status();
    if (!copy.ok() || !pieces.ok()) return "";
    std::string all;
    for (const BufferPool::Buffer& part : *copy) absl::StrAppend(&all, part.bytes());
    EXPECT_TRUE(all == absl::StrJoin(*pieces, ""));
    return all;
  }

  // The error for a list that a stranger wrote.
  std::string ErrorOf(const std::vector<Piece>& list) {
    std::memcpy(slot_.data(), list.data(), list.size() * sizeof(Piece));
    const MessageSpot spot = {0, static_cast<uint32_t>(list.size() * sizeof(Piece))};
    const auto copy = Read(spot);
    EXPECT_TRUE(absl::IsInvalidArgument(copy.status())) << copy.status();
    const auto view = *SharedHeapView::Open(*heap_.Describe());
    EXPECT_EQ(ViewPieces(spot, absl::MakeSpan(slot_), *view).status(), copy.status());
    return std::string(copy.status().message());
  }

  SharedHeap heap_{uint64_t{16} << 20};
  BufferPool pool_{kMaxMessageBytes, kMaxMessageBytes};
  std::vector<char> slot_ = std::vector<char>(64 << 10);
};

TEST_F(MessagePiecesTest, LeavesLargePayloadsInTheHeap) {
  const absl::string_view first = Lent(std::string(100000, 'f')), second = Lent(std::string(9000, 's'));
  const std::string before = "before", between = "between", behind = "behind";
  const auto spot =
      WritePieces(Message({before, first, between, between, second, behind}), heap_, absl::MakeSpan(slot_));
  ASSERT_TRUE(spot.has_value());
  EXPECT_EQ(spot->bytes, 5 * sizeof(Piece)) << "what is not in the heap and adjacent is one piece";
  EXPECT_EQ(ReadAll(*spot), absl::StrCat(before, first, between, between, second, behind));
}

TEST_F(MessagePiecesTest, IsNothingForMessagesWithoutLargePayloadsThere) {
  const std::string large(100000, 'a');
  EXPECT_EQ(WritePieces(Message({"small", Lent("small, too")}), heap_, absl::MakeSpan(slot_)), std::nullopt);
  EXPECT_EQ(WritePieces(Message({large}), heap_, absl::MakeSpan(slot_)), std::nullopt);
}

TEST_F(MessagePiecesTest, IsNothingIfTheRestDoesNotFit) {
  const std::string rest((64 << 10) - 2 * sizeof(Piece) + 1, 'r');
  const absl::string_view lent = Lent(std::string(9000, 'l'));
  EXPECT_EQ(WritePieces(Message({rest, lent}), heap_, absl::MakeSpan(slot_)), std::nullopt);
  const absl::string_view fits = absl::string_view(rest).substr(1);
  const auto spot = WritePieces(Message({fits, lent}), heap_, absl::MakeSpan(slot_));
  ASSERT_TRUE(spot.has_value());
  EXPECT_EQ(ReadAll(*spot), absl::StrCat(fits, lent));
}

TEST_F(MessagePiecesTest, GivesEachPayloadItsOwnAlignedMemoryAndChecksItsFloats) {
  for (const float last : {1.0f, std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> floats(70001, 1);
    floats.back() = last;
    const absl::string_view lent =
        Lent(std::string(reinterpret_cast<const char*>(floats.data()), floats.size() * sizeof(float)));
    const auto spot = WritePieces(Message({"seven b", lent, "x", lent}), heap_, absl::MakeSpan(slot_));
    ASSERT_TRUE(spot.has_value());
    const auto copy = Read(*spot);
    ASSERT_TRUE(copy.ok()) << copy.status();
    ASSERT_EQ(copy->size(), 4u);
    for (const int part : {1, 3}) {
      const BufferPool::Buffer& payload = (*copy)[part];
      EXPECT_EQ(reinterpret_cast<uintptr_t>(payload.bytes().data()) % BufferPool::kAlignment, 0u);
      EXPECT_EQ(payload.HasFiniteFloats(payload.bytes()), last == 1);
      EXPECT_LT(payload.capacity(), lent.size() + 4096);
    }
  }
}

TEST_F(MessagePiecesTest, RefusesListsThatLie) {
  EXPECT_THAT(ErrorOf({{uint64_t{16} << 20, 1, 1}}), HasSubstr("which is not in the heap"));
  EXPECT_THAT(ErrorOf({{UINT64_MAX - 1, 100, 1}}), HasSubstr("which is not in the heap"));
  EXPECT_THAT(ErrorOf({{(64 << 10) - 1, 2, 0}}), HasSubstr("a piece of 2 bytes at 65535 of place 0"));
  EXPECT_THAT(ErrorOf({{UINT64_MAX, 2, 0}}), HasSubstr("of place 0"));
  EXPECT_THAT(ErrorOf({{0, 2, 2}}), HasSubstr("of place 2"));
  EXPECT_THAT(ErrorOf({{UINT64_MAX, 0, 1}}), HasSubstr("a piece of 0 bytes"));
  EXPECT_THAT(ErrorOf(std::vector<Piece>(2, {0, 3 << 20, 1})), HasSubstr("got 6291456 bytes, want at most 4194304"));
  EXPECT_THAT(ErrorOf(std::vector<Piece>(1026, {0, 1, 0})), HasSubstr("want at most 1025 of 16 bytes"));
}

TEST_F(MessagePiecesTest, RefusesListsThatAreNotInTheSlot) {
  for (const MessageSpot spot : {MessageSpot{65536 - 15, 16}, MessageSpot{0, 17}, MessageSpot{UINT32_MAX, 16}}) {
    EXPECT_TRUE(absl::IsInvalidArgument(Read(spot).status())) << Read(spot).status();
  }
}

TEST_F(MessagePiecesTest, AMessageMayBeEmpty) { EXPECT_EQ(ReadAll({0, 0}), ""); }

}  // namespace
}  // namespace ballast
