// SPDX-License-Identifier: Apache-2.0
#include "client/shared_memory/slot_sender.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "common/shared_memory/shared_floats.h"

namespace ballast {
namespace {

std::shared_ptr<SlotPool> MakePool(uint32_t slots) { return std::make_shared<SlotPool>(*SharedRegion::Create(slots)); }

grpc::ByteBuffer BufferOf(const std::string& text) {
  const grpc::Slice slice(text);
  return grpc::ByteBuffer(&slice, 1);
}

TEST(SlotPoolTest, LendsTheBlockThatWasFreeLast) {
  SlotPool pool(*SharedRegion::Create(3));
  EXPECT_EQ(pool.Take(), 0u);
  EXPECT_EQ(pool.Take(), 1u);
  pool.Return(0);
  EXPECT_EQ(pool.Take(), 0u);
  EXPECT_EQ(pool.Take(), 2u);
  EXPECT_EQ(pool.Take(), std::nullopt);
}

TEST(SlotPoolTest, LeavesABlockAloneWhileTheServerUsesIt) {
  SlotPool pool(*SharedRegion::Create(1));
  const uint32_t slot = *pool.Take();
  pool.region().Lend(slot);
  ASSERT_TRUE(pool.region().Borrow(slot));
  pool.Return(slot);
  EXPECT_EQ(pool.Take(), std::nullopt);
  pool.region().GiveBack(slot);
  EXPECT_EQ(pool.Take(), slot);
}

TEST(BlockLoanTest, LendsAMessageAndFreesItsBlockInTheEnd) {
  const std::shared_ptr<SlotPool> pool = MakePool(1);
  {
    const std::optional<BlockLoan> loan = BlockLoan::Make(pool, BufferOf("a message"), false, CopyBytes);
    ASSERT_TRUE(loan.has_value());
    EXPECT_EQ(loan->reference().region(), pool->region().id());
    EXPECT_EQ(loan->reference().bytes(), 9u);
    EXPECT_FALSE(BlockLoan::Make(pool, BufferOf("another"), false, CopyBytes).has_value());
    ASSERT_TRUE(pool->region().Borrow(0));
    EXPECT_EQ(*loan->Answer(loan->reference()), "a message");
    pool->region().GiveBack(0);
  }
  EXPECT_TRUE(BlockLoan::Make(pool, BufferOf("another"), false, CopyBytes).has_value());
}

TEST(BlockLoanTest, WhatIsTooLargeIsNotLentAndKeepsNoBlock) {
  const std::shared_ptr<SlotPool> pool = MakePool(1);
  EXPECT_FALSE(
      BlockLoan::Make(pool, BufferOf(std::string(SharedRegion::kSlotBytes, 'a')), false, CopyBytes).has_value());
  EXPECT_FALSE(pool->region().Borrow(0)) << "a slot that was never lent";
  EXPECT_TRUE(BlockLoan::Make(pool, BufferOf("a message"), false, CopyBytes).has_value());
}

TEST(BlockLoanTest, RefusesAnAnswerThatIsNotInItsBlock) {
  const std::shared_ptr<SlotPool> pool = MakePool(2);
  const std::optional<BlockLoan> loan = BlockLoan::Make(pool, BufferOf("a message"), false, CopyBytes);
  v1::SharedSlot answer = loan->reference();
  answer.set_slot(1);
  EXPECT_TRUE(absl::IsInvalidArgument(loan->Answer(answer).status()));
  answer = loan->reference();
  answer.set_region(17);
  EXPECT_TRUE(absl::IsInvalidArgument(loan->Answer(answer).status()));
  answer = loan->reference();
  answer.set_bytes(UINT32_MAX);
  EXPECT_TRUE(absl::IsInvalidArgument(loan->Answer(answer).status()));
}

// A pool whose server reads this process's heap, as this process does the server's.
std::shared_ptr<SlotPool> MakePoolForPieces() {
  const std::shared_ptr<SharedRegion> region = *SharedRegion::Create(1);
  region->OfferCalls(/*takes_pieces=*/true);
  return std::make_shared<SlotPool>(region, nullptr, std::make_shared<SlotCaller>(region),
                                    *SharedHeapView::Open(*SharedHeap::OfProcess().Describe()));
}

TEST(BlockLoanTest, LeavesInTheHeapWhatIsThere) {
  SharedFloats floats(10000);
  const grpc::Slice slice(floats.data(), floats.size() * sizeof(float), [](void*) {});
  const grpc::ByteBuffer message(&slice, 1);
  const std::shared_ptr<SlotPool> pool = MakePoolForPieces();
  for (const bool in_pieces : {false, true}) {
    const std::optional<BlockLoan> loan = BlockLoan::Make(pool, message, in_pieces, CopyBytes);
    ASSERT_TRUE(loan.has_value());
    EXPECT_EQ(loan->in_pieces(), in_pieces);
    EXPECT_EQ(loan->reference().bytes() < 100, in_pieces);
    const SlotResponse answer = {
        .offset = loan->reference().offset(), .bytes = loan->reference().bytes(), .in_pieces = in_pieces};
    const absl::StatusOr<std::vector<absl::string_view>> pieces = loan->Answer(answer);
    ASSERT_TRUE(pieces.ok()) << pieces.status();
    EXPECT_EQ((*pieces)[0].size(), floats.size() * sizeof(float));
  }
  // A server that does not read the heap gets all of it.
  EXPECT_FALSE(BlockLoan::Make(MakePool(1), message, true, CopyBytes).value().in_pieces());
}

TEST(BlockLoanTest, RefusesAnAnswerInPiecesThatItDidNotAskFor) {
  const std::optional<BlockLoan> loan = BlockLoan::Make(MakePool(1), BufferOf("a message"), false, CopyBytes);
  EXPECT_TRUE(absl::IsInvalidArgument(loan->Answer(SlotResponse{.bytes = 0, .in_pieces = true}).status()));
}

}  // namespace

}  // namespace ballast
