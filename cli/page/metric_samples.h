// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace ballast {

// One line of a page in Prometheus' text format.
struct MetricSample {
  std::string name;
  std::map<std::string, std::string> labels;
  double value = 0;
};

// Returns the samples whose names are `wanted`; lines that are no samples are skipped.
std::vector<MetricSample> ParseMetricsText(absl::string_view text,
                                           const std::function<bool(absl::string_view name)>& wanted);

// Keeps the samples of the last five minutes of all processes of a run: each of the last 20 s, before that one each 5
// s. Does not know what they mean. Times are in seconds since 1970. Thread safety: none.
class SampleStore {
 public:
  struct Point {
    double time;
    double value;
  };
  // The values of one sample of one process.
  struct Series {
    // Name of the process: "worker-3".
    std::string process;
    std::map<std::string, std::string> labels;
    // In the order of time; not empty.
    std::deque<Point> points;
  };

  // Adds a process's samples, at a time that is later than those before.
  void Add(const std::string& process, double time, const std::vector<MetricSample>& samples);

  // Returns the series of a metric that had a sample in the 10 s before `now`.
  std::vector<const Series*> Of(const std::string& metric, double now) const;

  // Drops series without a sample in the last five minutes.
  void Prune(double now);

 private:
  using Key = std::pair<std::string, std::map<std::string, std::string>>;
  std::map<std::string, std::map<Key, Series>> metrics_;
};

// Returns how much a counter has grown in the `span` seconds before its newest point, and through *covered the seconds
// between the points used; restarts of the process do not count as negative. 0 of 0 s with a single point.
double IncreaseOf(const SampleStore::Series& series, double span, double* covered);

}  // namespace ballast
