// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "ballast/v1/parameter_service.pb.h"

namespace ballast {

// Writes metrics in Prometheus' text format (exposition format 0.0.4). Names have the prefix "ballast_" and base units;
// each family is written once, with all its samples. Thread safety: none.
class MetricsText {
 public:
  using Labels = std::vector<std::pair<absl::string_view, std::string>>;

  // A family with one sample. A counter's name ends in _total.
  void Gauge(absl::string_view name, absl::string_view help, double value, const Labels& labels = {});
  void Counter(absl::string_view name, absl::string_view help, double value, const Labels& labels = {});

  // Begins a family whose samples follow.
  void BeginGauges(absl::string_view name, absl::string_view help) { Begin(name, help, "gauge"); }
  void BeginCounters(absl::string_view name, absl::string_view help) { Begin(name, help, "counter"); }
  void BeginHistograms(absl::string_view name, absl::string_view help) { Begin(name, help, "histogram"); }
  void Sample(const Labels& labels, double value);
  // A histogram whose counted values, times `unit`, have the family's unit. It has a bucket for each bit length of the
  // counted values from `shortest` to `longest`, and one for all.
  void SampleHistogram(const Labels& labels, const v1::Histogram& histogram, double unit, int shortest, int longest);

  // Standard metrics of this process: start time, CPU seconds, memory, open files and their limit.
  void AddProcess();

  const std::string& text() const { return text_; }

 private:
  void Begin(absl::string_view name, absl::string_view help, absl::string_view type);
  void Line(absl::string_view name, const Labels& labels, absl::string_view value);

  std::string text_;
  std::string family_;
};

}  // namespace ballast
