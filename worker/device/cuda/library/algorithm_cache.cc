// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/library/algorithm_cache.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ballast {

AlgorithmCache::AlgorithmCache(std::string path) : path_(std::move(path)), values_(Read(path_)) {}

std::optional<std::string> AlgorithmCache::Find(absl::string_view shape) const {
  absl::MutexLock lock(&mutex_);
  const auto found = values_.find(std::string(shape));
  if (found == values_.end()) return std::nullopt;
  return found->second;
}

void AlgorithmCache::Add(absl::string_view shape, absl::string_view value) {
  Values all;
  {
    absl::MutexLock lock(&mutex_);
    values_[std::string(shape)] = std::string(value);
    if (path_.empty()) return;
    all = values_;
  }
  // Includes results that other processes have written meanwhile.
  Values others = Read(path_);
  all.merge(others);
  Write(path_, all);
}

AlgorithmCache::Values AlgorithmCache::Read(const std::string& path) {
  Values values;
  if (path.empty()) return values;
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string shape, value, more;
    if (words >> shape >> value && !(words >> more)) values[shape] = value;
  }
  return values;
}

void AlgorithmCache::Write(const std::string& path, const Values& values) {
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  // Writes a new file and renames it, so that no process reads half a file.
  const std::string next = absl::StrCat(path, ".", getpid());
  {
    std::ofstream file(next);
    for (const auto& [shape, value] : values) file << shape << ' ' << value << '\n';
    if (!file.flush()) {
      std::filesystem::remove(next, ignored);
      return;
    }
  }
  std::filesystem::rename(next, path, ignored);
}

absl::StatusOr<int> FindFastest(int count, const std::function<absl::StatusOr<float>(int)>& measure) {
  constexpr int kRounds = 3;
  absl::StatusOr<int> fastest = absl::NotFoundError("no algorithm to choose from");
  float least = std::numeric_limits<float>::max();
  for (int candidate = 0; candidate < count; ++candidate) {
    for (int round = 0; round < kRounds; ++round) {
      const absl::StatusOr<float> time = measure(candidate);
      if (!time.ok()) {
        if (least == std::numeric_limits<float>::max()) fastest = time.status();
        break;
      }
      if (*time >= least) continue;
      least = *time;
      fastest = candidate;
    }
  }
  return fastest;
}

}  // namespace ballast
