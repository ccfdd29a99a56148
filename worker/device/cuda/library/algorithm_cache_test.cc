// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/library/algorithm_cache.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace ballast {
namespace {

std::string NewPath(const std::string& name) {
  const std::string folder = ::testing::TempDir() + "/" + name;
  std::filesystem::remove_all(folder);
  return folder + "/gpu/algorithms.txt";
}

TEST(AlgorithmCacheTest, AnswersWhatWasAdded) {
  AlgorithmCache cache("");
  EXPECT_EQ(cache.Find("2x3x4"), std::nullopt);
  cache.Add("2x3x4", "a0");
  EXPECT_EQ(cache.Find("2x3x4"), "a0");
}

TEST(AlgorithmCacheTest, TheNextRunFindsIt) {
  const std::string path = NewPath("next_run");
  AlgorithmCache(path).Add("2x3x4", "a0");
  EXPECT_EQ(AlgorithmCache(path).Find("2x3x4"), "a0");
}

TEST(AlgorithmCacheTest, TwoProcessesKeepEachOthersMeasurements) {
  const std::string path = NewPath("two_processes");
  AlgorithmCache first(path), second(path);
  first.Add("1x1x1", "a");
  second.Add("2x2x2", "b");
  const AlgorithmCache third(path);
  EXPECT_EQ(third.Find("1x1x1"), "a");
  EXPECT_EQ(third.Find("2x2x2"), "b");
}

TEST(AlgorithmCacheTest, LinesThatMakeNoSenseAreLeftOut) {
  const std::string path = NewPath("damaged");
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path) << "\n1x1x1\n2x2x2 b\n3x3x3 c c\n\xff\xfe";
  const AlgorithmCache cache(path);
  EXPECT_EQ(cache.Find("1x1x1"), std::nullopt);
  EXPECT_EQ(cache.Find("2x2x2"), "b");
  EXPECT_EQ(cache.Find("3x3x3"), std::nullopt);
}

TEST(AlgorithmCacheTest, GoesOnWithoutAFileThatCannotBeWritten) {
  AlgorithmCache cache("/proc/no/such/folder/file");
  cache.Add("1x1x1", "a");
  EXPECT_EQ(cache.Find("1x1x1"), "a");
}

TEST(FindFastestTest, PicksTheShortestOfSeveralMeasurements) {
  // The first measurement of the second candidate is disturbed.
  std::vector<std::vector<float>> times = {{3, 3, 3}, {9, 2, 2.5}, {4, 4, 4}};
  std::vector<int> calls(3);
  EXPECT_EQ(*FindFastest(3, [&](int i) -> absl::StatusOr<float> { return times[i][calls[i]++]; }), 1);
}

TEST(FindFastestTest, LeavesOutWhatFails) {
  const auto time = [](int i) { return i == 0 ? absl::StatusOr<float>(absl::InternalError("broken")) : 1.0f; };
  EXPECT_EQ(*FindFastest(2, time), 1);
}

TEST(FindFastestTest, FailsWhereAllFail) {
  EXPECT_EQ(FindFastest(2, [](int) -> absl::StatusOr<float> { return absl::InternalError("broken"); }).status(),
            absl::InternalError("broken"));
}

}  // namespace
}  // namespace ballast
