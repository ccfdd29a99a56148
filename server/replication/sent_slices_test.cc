// SPDX-License-Identifier: Apache-2.0
#include "server/replication/sent_slices.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A push of gradients for slice 0 and slice 1 of tensor 5, and slice 0 of tensor 6.
internal::v1::ShardRecord Push() {
  internal::v1::ShardRecord record;
  for (const SliceKey key : {SliceKey{5, 0}, SliceKey{5, 1}, SliceKey{6, 0}}) {
    internal::v1::LoggedPush::Gradient& gradient = *record.mutable_push()->add_gradients();
    gradient.set_tensor_id(key.tensor_id);
    gradient.set_slice_index(key.slice_index);
  }
  return record;
}

TEST(SentSlicesTest, DuringATransferTheGradientsOfSentSlicesAreWanted) {
  SentSlices slices;
  EXPECT_THAT(slices.Wanted(Push()), IsEmpty());
  slices.Begin();
  EXPECT_THAT(slices.Wanted(Push()), ElementsAre(false, false, false));
  slices.Add({{5, 1}});
  EXPECT_THAT(slices.Wanted(Push()), ElementsAre(false, true, false));
  EXPECT_TRUE(slices.TryEnd());
  EXPECT_THAT(slices.Wanted(Push()), IsEmpty());
}

TEST(SentSlicesTest, ATransferDoesNotEndAfterADeclaration) {
  SentSlices slices;
  slices.Begin();
  slices.Add({{5, 0}});
  slices.OnDeclaration();
  EXPECT_FALSE(slices.TryEnd());
  EXPECT_THAT(slices.Wanted(Push()), ElementsAre(true, false, false));
  const std::vector<OwnedSlice> unsent = slices.Unsent({{{5, 0}, 10}, {{5, 1}, 20}});
  ASSERT_EQ(unsent.size(), 1);
  EXPECT_EQ(unsent[0].key, (SliceKey{5, 1}));
  EXPECT_EQ(unsent[0].elements, 20);
  EXPECT_TRUE(slices.TryEnd());
}

TEST(SentSlicesTest, ATransferBeginsWithNothingSent) {
  SentSlices slices;
  slices.Begin();
  slices.Add({{5, 0}});
  slices.OnDeclaration();
  slices.Clear();
  EXPECT_THAT(slices.Wanted(Push()), IsEmpty());
  slices.Begin();
  EXPECT_THAT(slices.Wanted(Push()), ElementsAre(false, false, false));
  EXPECT_TRUE(slices.TryEnd());
}

}  // namespace
}  // namespace ballast
