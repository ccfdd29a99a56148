// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "tests/fault/programs/count_fields.h"

namespace ballast {

// Results of one or more runs of the oracle's job with injected faults.
struct FaultCounts {
  uint64_t pushes_acknowledged = 0;
  uint64_t pushes_lost = 0;
  uint64_t pushes_duplicated = 0;
  uint64_t wrong_weights = 0;
  uint64_t wrong_pulls = 0;
  uint64_t retries = 0;
  // Duplicate pushes that servers recognized and acknowledged like the first.
  uint64_t duplicates_refused = 0;
  uint64_t replies = 0;
  uint64_t replies_dropped = 0;
  uint64_t connections = 0;
  uint64_t kills = 0;
  uint64_t restarts = 0;
  uint64_t partitions = 0;
  uint64_t hangs = 0;
  // Use of all servers together, after the first pushes and at the end.
  uint64_t resident_first = 0;
  uint64_t resident_last = 0;
  uint64_t descriptors_first = 0;
  uint64_t descriptors_last = 0;
  // Time from each kill, and from each healing, to the first push acknowledged after it.
  std::vector<double> recovery_seconds;
  std::vector<double> healing_seconds;
  double seconds = 0;

  static std::vector<NamedCount<FaultCounts>> Fields();
  void Add(const FaultCounts& other);
  // True if nothing was lost, applied twice, wrong or hung.
  bool good() const { return pushes_lost + pushes_duplicated + wrong_weights + wrong_pulls + hangs == 0; }
  nlohmann::ordered_json ToJson() const;
};

// The q-quantile of the values, 0 <= q <= 1; 0 if there are none.
double Quantile(std::vector<double> values, double q);

// Adds NAME_p50, NAME_p95 and NAME_max.
void AddQuantiles(const char* name, const std::vector<double>& values, nlohmann::ordered_json& json);

}  // namespace ballast
