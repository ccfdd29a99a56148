// SPDX-License-Identifier: Apache-2.0
#include "common/program/this_process.h"

#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;

TEST(ThisProcessTest, IsDescribedByItsHostAndIdInTheSameWayEachTime) {
  EXPECT_THAT(DescribeThisProcess(), HasSubstr(absl::StrCat(", process ", getpid())));
  EXPECT_EQ(DescribeThisProcess(), DescribeThisProcess());
}

TEST(ThisProcessTest, InAContainerTheDescriptionSaysWhichOfManyItIs) {
  const absl::Time early = absl::FromUnixMillis(1764144902113);
  EXPECT_EQ(DescribeProcess("pod-1", 1, early), "pod-1, process 1 since 08:15:02.113");
  EXPECT_NE(DescribeProcess("pod-1", 1, early), DescribeProcess("pod-1", 1, early + absl::Milliseconds(1)));
  EXPECT_EQ(DescribeProcess("host", 4711, early), "host, process 4711");
}

}  // namespace
}  // namespace ballast
