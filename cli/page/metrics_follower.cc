// SPDX-License-Identifier: Apache-2.0
#include "cli/page/metrics_follower.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

namespace ballast {
namespace {

// A file of this length takes a tenth of a second.
constexpr int64_t kLong = int64_t{4} << 20;
constexpr int64_t kPiece = int64_t{1} << 20;
// Longer than any line.
constexpr int64_t kLine = 4096;
constexpr int kSketched = 500;

int64_t SizeOf(const std::string& path) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  return error ? 0 : static_cast<int64_t>(size);
}

std::string ReadAt(std::ifstream& file, int64_t offset, int64_t length) {
  std::string text(length, '\0');
  file.clear();
  file.seekg(offset);
  file.read(text.data(), length);
  text.resize(std::max<std::streamsize>(0, file.gcount()));
  return text;
}

}  // namespace

std::vector<TrainMetrics> MetricsFollower::Sketch() const {
  std::vector<TrainMetrics> lines;
  const int64_t size = SizeOf(path_);
  if (size < kLong) return lines;
  std::ifstream file(path_, std::ios::binary);
  for (int i = 0; i < kSketched; ++i) {
    const std::string text = ReadAt(file, (size - kLine) * i / (kSketched - 1), kLine);
    const size_t begin = i == 0 ? 0 : text.find('\n') + 1, end = text.rfind('\n');
    if (end == text.npos || end <= begin) continue;
    const Metrics found = ParseMetrics(absl::string_view(text).substr(begin, end + 1 - begin));
    if (found.train.empty()) continue;
    const TrainMetrics& line = found.train.front();
    // The job may have returned to a checkpoint in between.
    while (!lines.empty() && lines.back().examples >= line.examples) lines.pop_back();
    lines.push_back(line);
  }
  return lines;
}

Metrics MetricsFollower::Next() {
  std::ifstream file(path_, std::ios::binary);
  if (!file) return {};
  std::string text = ReadAt(file, offset_, kPiece);
  text.resize(text.rfind('\n') + 1);
  offset_ += static_cast<int64_t>(text.size());
  return ParseMetrics(text);
}

double MetricsFollower::share() const {
  const int64_t size = SizeOf(path_);
  return size == 0 ? 1 : std::min(1.0, static_cast<double>(offset_) / static_cast<double>(size));
}

int64_t MetricsFollower::unfinished_bytes() const { return std::max<int64_t>(0, SizeOf(path_) - offset_); }

}  // namespace ballast
