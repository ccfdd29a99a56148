// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace ballast {

// Owns the latencies of calls, by the call's name. Thread safety: none.
class Latencies {
 public:
  void Add(const std::string& call, absl::Duration took, const absl::Status& status);
  void Add(const Latencies& other);

  uint64_t calls() const;
  uint64_t failed() const { return failed_; }
  // The first failure.
  const absl::Status& failure() const { return failure_; }
  // Percentile over all calls, in milliseconds; `share` in [0, 1].
  double Percentile(double share) const;

  // Count, p50, p99 and maximum of each call, in milliseconds.
  nlohmann::ordered_json ToJson() const;

 private:
  std::map<std::string, std::vector<double>> milliseconds_;
  uint64_t failed_ = 0;
  absl::Status failure_;
};

}  // namespace ballast
