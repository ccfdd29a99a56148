// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/mutator.h"

#include <set>

#include "gtest/gtest.h"

namespace ballast {
namespace {

const std::vector<std::string> kSeeds = {"the first of two", "", "another, which is a little longer than that"};

TEST(MutatorTest, GivesTheSameSequenceForTheSameSeed) {
  Mutator one(7), same(7), other(8);
  bool differs = false;
  for (int i = 0; i < 1000; ++i) {
    const std::string text = one.Next(kSeeds);
    EXPECT_EQ(text, same.Next(kSeeds)) << i;
    differs |= text != other.Next(kSeeds);
  }
  EXPECT_TRUE(differs);
}

TEST(MutatorTest, ChangesNearlyEveryInputAndNearlyAlwaysDifferently) {
  Mutator mutator(1);
  std::set<std::string> seen;
  size_t unchanged = 0;
  for (int i = 0; i < 1000; ++i) {
    const std::string text = mutator.Next(kSeeds);
    for (const std::string& seed : kSeeds) unchanged += text == seed;
    seen.insert(text);
  }
  EXPECT_LT(unchanged, 250u);
  EXPECT_GT(seen.size(), 600u);
}

TEST(MutatorTest, KeepsInputsBounded) {
  Mutator mutator(1);
  const std::vector<std::string> large = {std::string(Mutator::kMaxBytes, 'x')};
  for (int i = 0; i < 200; ++i) EXPECT_LE(mutator.Next(large).size(), Mutator::kMaxBytes);
}

}  // namespace
}  // namespace ballast
