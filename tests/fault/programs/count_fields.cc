// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/programs/count_fields.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

namespace ballast {

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
