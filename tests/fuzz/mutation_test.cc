// SPDX-License-Identifier: Apache-2.0
// The short form of a fuzz target: its seeds and a fixed number of damaged ones (or BALLAST_FUZZ_RUNS). The long form
// is tests/fault/fuzz.sh.
#include <signal.h>
#include <unistd.h>

#include <cstdio>

#include "absl/strings/numbers.h"
#include "gtest/gtest.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/mutator.h"

namespace ballast {
namespace {

constexpr int kRuns = 20000;

// Number of the current run, with which a crash can be repeated: the sequence is always the same.
volatile sig_atomic_t current_run = 0;

void PrintCurrentRun(int number) {
  char text[64];
  const int size = std::snprintf(text, sizeof(text), "signal %d in run %d\n", number, static_cast<int>(current_run));
  if (write(STDERR_FILENO, text, size) < 0) _exit(1);
  signal(number, SIG_DFL);
  raise(number);
}

void RunOnce(const std::string& input) {
  // A copy of exactly this size lets a sanitizer see reads past its end.
  const std::vector<uint8_t> bytes(input.begin(), input.end());
  FuzzOne(FuzzInput(bytes.data(), bytes.size()));
}

TEST(FuzzTest, SurvivesItsSeedsAndDamagedOnes) {
  int runs = kRuns;
  if (const char* text = std::getenv("BALLAST_FUZZ_RUNS")) {
    ASSERT_TRUE(absl::SimpleAtoi(text, &runs)) << "BALLAST_FUZZ_RUNS is \"" << text << "\", want a number";
  }
  signal(SIGABRT, PrintCurrentRun);
  signal(SIGSEGV, PrintCurrentRun);
  const std::vector<std::string> seeds = FuzzSeeds();
  ASSERT_FALSE(seeds.empty());
  for (const std::string& seed : seeds) RunOnce(seed);
  Mutator mutator(1);
  for (int run = 1; run <= runs; ++run) {
    current_run = run;
    RunOnce(mutator.Next(seeds));
  }
  RecordProperty("runs", runs);
}

}  // namespace
}  // namespace ballast
