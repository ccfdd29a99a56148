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

TEST(TableSpecTest, RefusesAdmissionThatCannotBe) {
  v1::TableSpec spec = SgdTable(1, "ids", 16);
  spec.mutable_admission()->set_probability(1.5f);
  EXPECT_EQ(ValidateTableSpec(spec).message(),
            "table \"ids\": admission.probability: got 1.5, want a number in [0, 1]");
  spec.mutable_admission()->set_probability(0.5f);
  EXPECT_TRUE(ValidateTableSpec(spec).ok());
  spec.mutable_admission()->set_sketch(true);
  EXPECT_EQ(ValidateTableSpec(spec).message(), "table \"ids\": admission.min_uses: got 0, want 2 to 15 with sketch");
  spec.mutable_admission()->set_min_uses(15);
  EXPECT_TRUE(ValidateTableSpec(spec).ok());
  spec.mutable_admission()->set_min_uses(16);
  EXPECT_FALSE(ValidateTableSpec(spec).ok());
  spec.mutable_admission()->set_sketch(false);
  EXPECT_TRUE(ValidateTableSpec(spec).ok());
}

TEST(TableSpecTest, RefusesEvictionThatCannotBe) {
  v1::TableSpec spec = SgdTable(1, "ids", 16);
  spec.mutable_eviction()->set_max_rows(4095);
  EXPECT_EQ(ValidateTableSpec(spec).message(),
            "table \"ids\": eviction.max_rows: got 4095, want at least 4096, one row for each of the table's ranges; "
            "range_bits sets their number");
  spec.mutable_eviction()->set_max_rows(4096);
  spec.mutable_eviction()->set_half_life_steps(100);
  spec.mutable_eviction()->set_min_norm(0.1f);
  EXPECT_TRUE(ValidateTableSpec(spec).ok());
  spec.mutable_eviction()->set_half_life_steps(-1);
  EXPECT_FALSE(ValidateTableSpec(spec).ok());
  spec.mutable_eviction()->set_half_life_steps(std::numeric_limits<float>::quiet_NaN());
  EXPECT_FALSE(ValidateTableSpec(spec).ok());
  spec.mutable_eviction()->set_half_life_steps(100);
  spec.mutable_eviction()->clear_max_rows();
  EXPECT_EQ(ValidateTableSpec(spec).message(),
            "table \"ids\": eviction.half_life_steps: got 100 without max_rows; it orders the rows that max_rows "
            "evicts");
}

}  // namespace
}  // namespace ballast
