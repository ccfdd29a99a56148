// SPDX-License-Identifier: Apache-2.0
#include "common/job/kind_names.h"

#include "ballast/v1/job.pb.h"
#include "ballast/v1/tensor.pb.h"
#include "gmock/gmock.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;

TEST(KindNamesTest, ComeFromTheDescriptor) {
  EXPECT_THAT(KindNames(*v1::Loss::descriptor()),
              ElementsAre("softmax_cross_entropy", "mean_squared_error", "sigmoid_cross_entropy"));
  EXPECT_EQ(KindPhrase(*v1::ConsistencyPolicy::descriptor()), "sync, async, bounded or local_sgd");
}

TEST(KindNamesTest, NameTheKindThatIsSet) {
  v1::ConsistencyPolicy policy;
  EXPECT_EQ(KindName(policy), "");
  policy.mutable_sync();
  EXPECT_EQ(KindName(policy), "sync");
  policy.mutable_async();
  EXPECT_EQ(KindName(policy), "async");
  policy.mutable_bounded();
  EXPECT_EQ(KindName(policy), "bounded");
  policy.mutable_local_sgd();
  EXPECT_EQ(KindName(policy), "local_sgd");
}

TEST(KindNamesTest, LeaveOutKindsForOtherParameters) {
  EXPECT_THAT(KindNames(*v1::Initializer::descriptor(), v1::PARAMETER_KIND_TABLE),
              ElementsAre("zeros", "constant", "uniform", "normal"));
  EXPECT_EQ(KindNames(*v1::Initializer::descriptor(), v1::PARAMETER_KIND_TENSOR),
            KindNames(*v1::Initializer::descriptor()));
}

TEST(KindNamesTest, LeaveOldNamesOfAValueOut) {
  EXPECT_THAT(ValueNames(*v1::Durability::Mode_descriptor()),
              ElementsAre("none", "checkpoint", "wal", "wal_sync", "standby"));
}

}  // namespace
}  // namespace ballast
