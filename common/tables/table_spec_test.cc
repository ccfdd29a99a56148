// SPDX-License-Identifier: Apache-2.0
#include "common/tables/table_spec.h"

#include <limits>

#include "common/tables/table_spec_fixture.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

TEST(TableSpecTest, AcceptsAnOrdinaryTable) { EXPECT_EQ(ValidateTableSpec(SgdTable(1, "ids", 16)), absl::OkStatus()); }

TEST(TableSpecTest, AcceptsEachLimit) {
  v1::TableSpec spec = SgdTable(1, "ids", 1);
  spec.set_range_bits(6);
  EXPECT_TRUE(ValidateTableSpec(spec).ok());
  spec.set_dim(4096);
  spec.set_range_bits(16);
  EXPECT_TRUE(ValidateTableSpec(spec).ok());
}

TEST(TableSpecTest, RefusesRowsOfNoOrTooManyWeights) {
  EXPECT_EQ(ValidateTableSpec(SgdTable(1, "ids", 0)).message(), "table \"ids\": dim: got 0, want 1 to 4096");
  EXPECT_EQ(ValidateTableSpec(SgdTable(1, "ids", 4097)).message(), "table \"ids\": dim: got 4097, want 1 to 4096");
}

TEST(TableSpecTest, RefusesTooFewOrTooManyRanges) {
  v1::TableSpec spec = SgdTable(1, "ids", 16);
  spec.set_range_bits(5);
  EXPECT_EQ(ValidateTableSpec(spec).message(), "table \"ids\": range_bits: got 5, want 6 to 16, or nothing for 12");
  spec.set_range_bits(17);
  EXPECT_FALSE(ValidateTableSpec(spec).ok());
}

TEST(TableSpecTest, RefusesNamesThatCannotBePrinted) {
  EXPECT_EQ(ValidateTableSpec(SgdTable(1, "a b", 16)).message(),
            "table 1: name: got \"a b\" of 3 bytes, want 1 to 256 printable ones without spaces, such as fc1/weight");
  EXPECT_FALSE(ValidateTableSpec(SgdTable(1, "", 16)).ok());
  EXPECT_FALSE(ValidateTableSpec(SgdTable(1, std::string(257, 'a'), 16)).ok());
}

TEST(TableSpecTest, RefusesInitializersThatNeedAShape) {
  v1::TableSpec spec = SgdTable(1, "ids", 16);
  spec.mutable_initializer()->mutable_he_normal();
  EXPECT_NE(ValidateTableSpec(spec).message().find("he_normal is for tensors only"), absl::string_view::npos)
      << ValidateTableSpec(spec);
  spec.mutable_initializer()->mutable_glorot_uniform();
  EXPECT_FALSE(ValidateTableSpec(spec).ok());
  spec.mutable_initializer()->mutable_provided();
  EXPECT_FALSE(ValidateTableSpec(spec).ok());
  spec.mutable_initializer()->mutable_normal()->set_stddev(0.01f);
  EXPECT_TRUE(ValidateTableSpec(spec).ok());
}

TEST(TableSpecTest, RefusesImpossibleOptimizers) {
  v1::TableSpec spec = SgdTable(1, "ids", 16);
  spec.mutable_optimizer()->mutable_sgd()->set_learning_rate(std::numeric_limits<float>::infinity());
  EXPECT_EQ(ValidateTableSpec(spec).message(),
            "table \"ids\": optimizer.sgd.learning_rate: got inf, want a finite number above 0");
  spec.clear_optimizer();
  EXPECT_FALSE(ValidateTableSpec(spec).ok());
}

TEST(TableSpecTest, HasARangeForEachPatternOfItsBits) {
  v1::TableSpec spec = SgdTable(1, "ids", 16);
  EXPECT_EQ(RangeCount(spec), 4096);
  spec.set_range_bits(6);
  EXPECT_EQ(RangeCount(spec), 64);
}

}  // namespace
}  // namespace ballast
