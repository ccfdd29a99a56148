// SPDX-License-Identifier: Apache-2.0
#include "server/replication/transfer_progress.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uint64_t kMebibyte = 1 << 20;

class TransferProgressTest : public testing::Test {
 protected:
  TransferProgressTest() { progress_.Begin(now_); }

  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
  TransferProgress progress_;
  v1::StandbyReport report_;
};

TEST_F(TransferProgressTest, SilenceBeginsAnewWithWhateverIsTakenIn) {
  EXPECT_EQ(progress_.Silence(now_ + absl::Hours(1)), absl::ZeroDuration()) << "no sent data is outstanding";
  progress_.Sent(100, now_);
  EXPECT_EQ(progress_.Silence(now_ + absl::Seconds(4)), absl::Seconds(4));
  progress_.Taken(1, now_ + absl::Seconds(4));
  EXPECT_EQ(progress_.Silence(now_ + absl::Seconds(6)), absl::Seconds(2));
  // Sent data alone is no progress: it may be in the buffers of a lost peer.
  progress_.Sent(100, now_ + absl::Seconds(7));
  progress_.Taken(1, now_ + absl::Seconds(8));
  EXPECT_EQ(progress_.Silence(now_ + absl::Seconds(9)), absl::Seconds(5));
}

TEST_F(TransferProgressTest, WhatWasIdleIsNotLate) {
  progress_.Sent(10, now_);
  progress_.Taken(10, now_ + absl::Seconds(1));
  progress_.Sent(10, now_ + absl::Seconds(60));
  EXPECT_EQ(progress_.Silence(now_ + absl::Seconds(61)), absl::Seconds(1));
}

TEST_F(TransferProgressTest, SaysBytesRateAndLag) {
  progress_.SetTotal(100 * kMebibyte);
  progress_.AddDone(30 * kMebibyte);
  progress_.Sent(40 * kMebibyte, now_);
  progress_.Taken(36 * kMebibyte, now_ + absl::Seconds(1));
  now_ += absl::Seconds(4);
  progress_.Fill(2 * kMebibyte, now_, report_);
  EXPECT_EQ(report_.bytes_total(), 100 * kMebibyte);
  EXPECT_EQ(report_.bytes_done(), 30 * kMebibyte);
  EXPECT_EQ(report_.bytes_per_second(), 9 * kMebibyte);
  EXPECT_EQ(report_.lag_bytes(), 6 * kMebibyte);
}

TEST_F(TransferProgressTest, LogsALineInFiveSeconds) {
  progress_.SetTotal(2 * kMebibyte);
  progress_.AddDone(kMebibyte);
  progress_.Fill(0, now_ + absl::Seconds(4), report_);
  EXPECT_EQ(progress_.Line(report_, now_ + absl::Seconds(4)), std::nullopt);
  EXPECT_EQ(progress_.Line(report_, now_ + absl::Seconds(5)), "1 of 2 MiB sent, 0.0 MiB/s; 0.0 MiB behind");
  EXPECT_EQ(progress_.Line(report_, now_ + absl::Seconds(9)), std::nullopt);
}

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
