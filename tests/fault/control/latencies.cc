// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/control/latencies.h"

#include <algorithm>
#include <cmath>

namespace ballast {
namespace {

double PercentileOf(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1) + 0.5)];
}

// Rounds to hundredths.
double Rounded(double milliseconds) { return std::round(milliseconds * 100) / 100; }

}  // namespace

void Latencies::Add(const std::string& call, absl::Duration took, const absl::Status& status) {
  milliseconds_[call].push_back(absl::ToDoubleMilliseconds(took));
  if (status.ok()) return;
  ++failed_;
  failure_.Update(status);
}

void Latencies::Add(const Latencies& other) {
  for (const auto& [call, values] : other.milliseconds_) {
    milliseconds_[call].insert(milliseconds_[call].end(), values.begin(), values.end());
  }
  failed_ += other.failed_;
  failure_.Update(other.failure_);
}

uint64_t Latencies::calls() const {
  uint64_t calls = 0;
  for (const auto& [call, values] : milliseconds_) calls += values.size();
  return calls;
}

double Latencies::Percentile(double share) const {
  std::vector<double> all;
  for (const auto& [call, values] : milliseconds_) all.insert(all.end(), values.begin(), values.end());
  return PercentileOf(std::move(all), share);
}

nlohmann::ordered_json Latencies::ToJson() const {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const auto& [call, values] : milliseconds_) {
    json[call] = {{"calls", values.size()},
                  {"ms_p50", Rounded(PercentileOf(values, 0.5))},
                  {"ms_p99", Rounded(PercentileOf(values, 0.99))},
                  {"ms_max", Rounded(PercentileOf(values, 1))}};
  }
  return json;
}

}  // namespace ballast
