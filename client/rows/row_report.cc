// SPDX-License-Identifier: Apache-2.0
#include "client/rows/row_report.h"

#include <algorithm>

#include "google/protobuf/repeated_field.h"

namespace ballast {
namespace {

using Numbers = google::protobuf::RepeatedField<uint64_t>;

void AddNumbers(const Numbers& from, Numbers& to) {
  if (to.size() < from.size()) to.Resize(from.size(), 0);
  for (int i = 0; i < from.size(); ++i) to[i] += from[i];
}

// The fewest and the most updates of the rows in a bucket of RowStatistics.rows_by_updates.
uint64_t FewestUpdates(int bucket) { return bucket < 16 ? bucket + 1 : (uint64_t{16} << (bucket - 16)) + 1; }
uint64_t MostUpdates(int bucket) { return bucket < 16 ? bucket + 1 : uint64_t{32} << (bucket - 16); }

}  // namespace

void RowReport::Add(const v1::InspectRowsResponse& part) {
  const v1::RowStatistics& more = part.statistics();
  statistics_.set_rows(statistics_.rows() + more.rows());
  statistics_.set_waiting(statistics_.waiting() + more.waiting());
  statistics_.set_updates(statistics_.updates() + more.updates());
  AddNumbers(more.rows_by_updates(), *statistics_.mutable_rows_by_updates());
  AddNumbers(more.updates_by_updates(), *statistics_.mutable_updates_by_updates());
  AddNumbers(more.rows_by_age(), *statistics_.mutable_rows_by_age());
  AddNumbers(more.waiting_by_uses(), *statistics_.mutable_waiting_by_uses());
  statistics_.set_norm_sum(statistics_.norm_sum() + more.norm_sum());
  statistics_.set_norm_max(std::max(statistics_.norm_max(), more.norm_max()));
  top_.insert(top_.end(), part.top().begin(), part.top().end());
  std::stable_sort(top_.begin(), top_.end(),
                   [](const v1::HotRow& a, const v1::HotRow& b) { return a.updates() > b.updates(); });
  if (top_.size() > top_limit_) top_.resize(top_limit_);
}

AdmissionForecast Forecast(const v1::RowStatistics& statistics, uint32_t min_uses) {
  AdmissionForecast forecast;
  forecast.min_uses = min_uses;
  const uint64_t lost_by_row = std::max(min_uses, 1u) - 1;
  for (int bucket = 0; bucket < statistics.rows_by_updates_size(); ++bucket) {
    const uint64_t rows = statistics.rows_by_updates(bucket);
    const uint64_t updates = statistics.updates_by_updates(bucket);
    if (FewestUpdates(bucket) >= min_uses) {
      forecast.rows_least += rows;
      forecast.updates_least += updates - rows * lost_by_row;
    }
    if (MostUpdates(bucket) >= min_uses) {
      forecast.rows_most += rows;
      forecast.updates_most += updates - std::min(updates, rows * lost_by_row);
    }
  }
  // Rows that would be left out of a group are those with the fewest updates.
  forecast.updates_most = std::max(forecast.updates_most, forecast.updates_least);
  return forecast;
}

}  // namespace ballast
