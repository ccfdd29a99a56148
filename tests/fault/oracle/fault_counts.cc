// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/oracle/fault_counts.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

namespace ballast {

std::vector<NamedCount<FaultCounts>> FaultCounts::Fields() {
  return {
      {"kills", &FaultCounts::kills},
      {"restarts", &FaultCounts::restarts},
      {"pushes_acknowledged", &FaultCounts::pushes_acknowledged},
      {"pushes_lost", &FaultCounts::pushes_lost},
      {"pushes_duplicated", &FaultCounts::pushes_duplicated},
      {"wrong_weights", &FaultCounts::wrong_weights},
      {"wrong_pulls", &FaultCounts::wrong_pulls},
      {"retries", &FaultCounts::retries},
      {"duplicates_refused", &FaultCounts::duplicates_refused},
      {"replies", &FaultCounts::replies},
      {"replies_dropped", &FaultCounts::replies_dropped},
      {"connections", &FaultCounts::connections},
      {"partitions", &FaultCounts::partitions},
      {"hangs", &FaultCounts::hangs},
      {"resident_bytes_first", &FaultCounts::resident_first},
      {"resident_bytes_last", &FaultCounts::resident_last},
      {"descriptors_first", &FaultCounts::descriptors_first},
      {"descriptors_last", &FaultCounts::descriptors_last},
  };
}

void FaultCounts::Add(const FaultCounts& other) {
  AddFields(other, *this);
  recovery_seconds.insert(recovery_seconds.end(), other.recovery_seconds.begin(), other.recovery_seconds.end());
  healing_seconds.insert(healing_seconds.end(), other.healing_seconds.begin(), other.healing_seconds.end());
  seconds += other.seconds;
}

nlohmann::ordered_json FaultCounts::ToJson() const {
  nlohmann::ordered_json json;
  WriteFields(*this, json);
  AddQuantiles("recovery_seconds", recovery_seconds, json);
  AddQuantiles("healing_seconds", healing_seconds, json);
  return json;
}

double Quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  // The smallest value that at least a share q of the values does not exceed.
  const size_t rank = static_cast<size_t>(q * static_cast<double>(values.size()) + 0.999999);
  return values[std::min(std::max<size_t>(rank, 1), values.size()) - 1];
}

void AddQuantiles(const char* name, const std::vector<double>& values, nlohmann::ordered_json& json) {
  json[std::string(name) + "_p50"] = Quantile(values, 0.5);
  json[std::string(name) + "_p95"] = Quantile(values, 0.95);
  json[std::string(name) + "_max"] = Quantile(values, 1);
}

}  // namespace ballast
