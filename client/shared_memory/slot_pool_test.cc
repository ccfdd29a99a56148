// SPDX-License-Identifier: Apache-2.0
#include "client/shared_memory/slot_pool.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace ballast {
namespace {

std::shared_ptr<BlockPool> MakePool(uint32_t blocks) {
  return std::make_shared<BlockPool>(*SharedArea::Create(blocks));
}

grpc::ByteBuffer BufferOf(const std::string& text) {
  const grpc::Slice slice(text);
  return grpc::ByteBuffer(&slice, 1);
}

TEST(BlockPoolTest, LendsTheBlockThatWasFreeLast) {
  BlockPool pool(*SharedArea::Create(3));
  EXPECT_EQ(pool.Take(), 0u);
  EXPECT_EQ(pool.Take(), 1u);
  pool.Return(0);
  EXPECT_EQ(pool.Take(), 0u);
  EXPECT_EQ(pool.Take(), 2u);
  EXPECT_EQ(pool.Take(), std::nullopt);
}

TEST(BlockPoolTest, LeavesABlockAloneWhileTheServerUsesIt) {
  BlockPool pool(*SharedArea::Create(1));
  const uint32_t block = *pool.Take();
  pool.area().Lend(block);
  ASSERT_TRUE(pool.area().Borrow(block));
  pool.Return(block);
  EXPECT_EQ(pool.Take(), std::nullopt);
  pool.area().GiveBack(block);
  EXPECT_EQ(pool.Take(), block);
}

TEST(BlockLoanTest, LendsAMessageAndFreesItsBlockInTheEnd) {
  const std::shared_ptr<BlockPool> pool = MakePool(1);
  {
    const std::optional<BlockLoan> loan = BlockLoan::Make(pool, BufferOf("a message"));
    ASSERT_TRUE(loan.has_value());
    EXPECT_EQ(loan->reference().area(), pool->area().id());
    EXPECT_EQ(loan->reference().bytes(), 9u);
    EXPECT_FALSE(BlockLoan::Make(pool, BufferOf("another")).has_value());
    ASSERT_TRUE(pool->area().Borrow(0));
    EXPECT_EQ(*loan->Answer(loan->reference()), "a message");
    pool->area().GiveBack(0);
  }
  EXPECT_TRUE(BlockLoan::Make(pool, BufferOf("another")).has_value());
}

TEST(BlockLoanTest, WhatIsTooLargeIsNotLentAndKeepsNoBlock) {
  const std::shared_ptr<BlockPool> pool = MakePool(1);
  EXPECT_FALSE(BlockLoan::Make(pool, BufferOf(std::string(SharedArea::kBlockBytes, 'a'))).has_value());
  EXPECT_FALSE(pool->area().Borrow(0)) << "a block that was never lent";
  EXPECT_TRUE(BlockLoan::Make(pool, BufferOf("a message")).has_value());
}

TEST(BlockLoanTest, RefusesAnAnswerThatIsNotInItsBlock) {
  const std::shared_ptr<BlockPool> pool = MakePool(2);
  const std::optional<BlockLoan> loan = BlockLoan::Make(pool, BufferOf("a message"));
  v1::SharedBlock answer = loan->reference();
  answer.set_block(1);
  EXPECT_TRUE(absl::IsInvalidArgument(loan->Answer(answer).status()));
  answer = loan->reference();
  answer.set_area(17);
  EXPECT_TRUE(absl::IsInvalidArgument(loan->Answer(answer).status()));
  answer = loan->reference();
  answer.set_bytes(UINT32_MAX);
  EXPECT_TRUE(absl::IsInvalidArgument(loan->Answer(answer).status()));
}

}  // namespace
}  // namespace ballast
