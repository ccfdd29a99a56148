// SPDX-License-Identifier: Apache-2.0
#include "server/tables/row_inspection.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "common/tables/row_hash.h"
#include "google/protobuf/repeated_field.h"

namespace ballast {
namespace {

using Numbers = google::protobuf::RepeatedField<uint64_t>;

// Adds to number `at`, which may be beyond the end.
void AddAt(Numbers& numbers, size_t at, uint64_t more) {
  if (at >= static_cast<size_t>(numbers.size())) numbers.Resize(at + 1, 0);
  numbers[at] += more;
}

// See RowStatistics.rows_by_updates.
size_t UpdatesBucket(uint32_t updates) {
  constexpr uint32_t kExact = 16;
  if (updates <= kExact) return updates - 1;
  return kExact - 1 + std::bit_width((updates - 1) / kExact);
}

}  // namespace

void RowInspection::Add(const RowView& row) {
  if (time_.HasExpired(row.state.last_step) || row.state.version == 0) return;
  const uint32_t updates = row.state.version;
  const uint32_t age = std::max(time_.Since(row.state.last_step), 0);
  double squares = 0;
  for (float weight : row.weights) squares += double{weight} * weight;
  const double norm = std::sqrt(squares);
  statistics_.set_rows(statistics_.rows() + 1);
  statistics_.set_updates(statistics_.updates() + updates);
  AddAt(*statistics_.mutable_rows_by_updates(), UpdatesBucket(updates), 1);
  AddAt(*statistics_.mutable_updates_by_updates(), UpdatesBucket(updates), updates);
  AddAt(*statistics_.mutable_rows_by_age(), std::bit_width(age), 1);
  statistics_.set_norm_sum(statistics_.norm_sum() + norm);
  statistics_.set_norm_max(std::max(statistics_.norm_max(), norm));
  if (top_ == 0) return;
  const Hot hot{row.hash, updates, age, static_cast<float>(norm)};
  if (hot_.size() == top_) {
    if (!(hot < hot_.front())) return;
    std::pop_heap(hot_.begin(), hot_.end());
    hot_.pop_back();
  }
  hot_.push_back(hot);
  std::push_heap(hot_.begin(), hot_.end());
}

void RowInspection::AddWaiting(uint64_t ids, const std::vector<uint64_t>& by_uses) {
  statistics_.set_waiting(statistics_.waiting() + ids);
  for (size_t i = 0; i < by_uses.size(); ++i) AddAt(*statistics_.mutable_waiting_by_uses(), i, by_uses[i]);
}

std::vector<v1::HotRow> RowInspection::Top() const {
  std::vector<Hot> sorted = hot_;
  std::sort(sorted.begin(), sorted.end());
  std::vector<v1::HotRow> rows;
  for (const Hot& hot : sorted) {
    v1::HotRow& row = rows.emplace_back();
    row.set_id(RowIdOf(hot.hash, table_id_));
    row.set_updates(hot.updates);
    row.set_age(hot.age);
    row.set_norm(hot.norm);
  }
  return rows;
}

}  // namespace ballast
