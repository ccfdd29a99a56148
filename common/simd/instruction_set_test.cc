// SPDX-License-Identifier: Apache-2.0
#include "common/simd/instruction_set.h"

#include <cstdio>
#include <cstdlib>

#include "gtest/gtest.h"

namespace ballast {
namespace {

// A process that never asked for the set before.
void PrintChosenSet(const char* variable) {
  setenv(kInstructionSetVariable, variable, 1);
  fprintf(stderr, "uses %s\n", NameOf(ChosenInstructionSet()).c_str());
  exit(0);
}

TEST(InstructionSetTest, TheVariableChooses) {
  for (const InstructionSet set : AvailableInstructionSets()) {
    EXPECT_EXIT(PrintChosenSet(NameOf(set).c_str()), testing::ExitedWithCode(0), "^uses " + NameOf(set) + "\n$");
  }
}

TEST(InstructionSetTest, WithoutAValueItIsTheFastest) {
  const std::string fastest = NameOf(AvailableInstructionSets().back());
  EXPECT_EXIT(PrintChosenSet(""), testing::ExitedWithCode(0), "^uses " + fastest + "\n$");
}

TEST(InstructionSetTest, AnUnknownNameIsReportedAndIgnored) {
  const std::string fastest = NameOf(AvailableInstructionSets().back());
  EXPECT_EXIT(
      PrintChosenSet("neon"), testing::ExitedWithCode(0),
      "^warning: BALLAST_INSTRUCTION_SET: got \"neon\", want portable.*; using " + fastest + "\nuses " + fastest);
}

TEST(InstructionSetTest, FindsOnlyWhatTheMachineHas) {
  EXPECT_EQ(AvailableInstructionSet("portable"), InstructionSet::kPortable);
  EXPECT_EQ(AvailableInstructionSet("AVX2"), std::nullopt);
  EXPECT_EQ(AvailableInstructionSet(""), std::nullopt);
}

}  // namespace
}  // namespace ballast
