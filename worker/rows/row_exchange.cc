// SPDX-License-Identifier: Apache-2.0
#include "worker/rows/row_exchange.h"

#include <algorithm>
#include <utility>

namespace ballast {

RowExchange::RowExchange(TrainableModel* model, Client* client, const Options& options)
    : model_(model),
      client_(client),
      options_(options),
      // Like the exchange of parameters, whose threads receive for themselves if it has any.
      wait_(client,
            {.helps = model->waits_for_loss(), .interrupted = options.interrupted, .timeline = options.timeline}) {
  const size_t tables = model->tables().size();
  for (Slot& slot : slots_) {
    slot.rows.resize(tables);
    slot.values.resize(tables);
    slot.gradients.resize(tables);
    slot.versions.resize(tables);
    slot.views.resize(tables);
  }
}

absl::StatusOr<RowsResult> RowExchange::Await(const Future<RowsResult>& future, absl::string_view what) {
  const absl::StatusOr<absl::Duration> waited =
      wait_.Await([&](absl::Duration timeout) { return future.WaitFor(timeout); }, what);
  if (!waited.ok()) return waited.status();
  stats_.waited += *waited;
  absl::StatusOr<RowsResult> result = future.Get();
  if (result.ok()) {
    stats_.bytes_sent += result->bytes_sent;
    stats_.bytes_received += result->bytes_received;
  }
  return result;
}

absl::Status RowExchange::AwaitPush(Slot& slot) {
  if (!slot.push.has_value()) return absl::OkStatus();
  const absl::StatusOr<RowsResult> result = Await(*slot.push, "pushes of rows");
  if (!result.ok()) return result.status();
  slot.push.reset();
  ++stats_.pushes;
  stats_.max_staleness = std::max<uint64_t>(stats_.max_staleness, result->max_staleness);
  stats_.staleness_sum += result->max_staleness;
  return absl::OkStatus();
}

absl::Status RowExchange::Drop(Slot& slot) {
  if (!slot.pull.has_value()) return absl::OkStatus();
  const absl::Status status = Await(*slot.pull, "rows").status();
  slot.pull.reset();
  slot.batch.reset();
  return status;
}

absl::StatusOr<RowExchange::Slot*> RowExchange::TakeSlot() {
  Slot* best = nullptr;
  const auto waits = [](const Slot& slot) { return slot.push.has_value() && !slot.push->Ready(); };
  for (Slot& slot : slots_) {
    if (&slot == current_ || &slot == next_) continue;
    const bool better = best == nullptr || (waits(*best) && (!waits(slot) || slot.push_number < best->push_number));
    if (better) best = &slot;
  }
  if (absl::Status status = AwaitPush(*best); !status.ok()) return status;
  return best;
}

void RowExchange::BeginPull(Slot& slot, uint64_t step, absl::Span<const BatchRows> rows) {
  slot.step = step;
  std::vector<RowPull> pulls;
  for (size_t t = 0; t < rows.size(); ++t) {
    slot.rows[t] = rows[t];
    const size_t count = rows[t].ids.size();
    slot.values[t].resize(count * model_->tables()[t].dim);
    slot.versions[t].resize(count);
    slot.views[t] = {slot.values[t], slot.rows[t].ends, slot.rows[t].places};
    stats_.pulled += count;
    if (count == 0) continue;
    RowPull& pull = pulls.emplace_back();
    pull.table_id = options_.first_id + t;
    pull.ids = slot.rows[t].ids;
    pull.values = absl::MakeSpan(slot.values[t]);
    pull.versions = absl::MakeSpan(slot.versions[t]);
  }
  slot.pull.reset();
  slot.clocks = {};
  if (!pulls.empty()) slot.pull = client_->PullRows(pulls, step);
}

absl::Status RowExchange::EndPull(Slot& slot) {
  if (!slot.pull.has_value()) return absl::OkStatus();
  absl::StatusOr<RowsResult> result = Await(*slot.pull, "rows");
  if (!result.ok()) return result.status();
  slot.pull.reset();
  slot.clocks = std::move(result->clocks);
  return absl::OkStatus();
}

absl::Status RowExchange::Prefetch(uint64_t batch, uint64_t step, absl::Span<const BatchRows> rows) {
  if (next_ != nullptr) return absl::OkStatus();
  const absl::StatusOr<Slot*> slot = TakeSlot();
  if (!slot.ok()) return slot.status();
  next_ = *slot;
  next_->batch = batch;
  BeginPull(*next_, step, rows);
  return absl::OkStatus();
}

absl::StatusOr<absl::Span<const RowsView>> RowExchange::Fetch(uint64_t batch, uint64_t step,
                                                              absl::Span<const BatchRows> rows) {
  Slot* const ahead = std::exchange(next_, nullptr);
  if (ahead != nullptr && ahead->batch == batch && ahead->step == step) {
    current_ = ahead;
  } else {
    if (ahead != nullptr) {
      if (absl::Status status = Drop(*ahead); !status.ok()) return status;
    }
    const absl::StatusOr<Slot*> slot = TakeSlot();
    if (!slot.ok()) return slot.status();
    current_ = *slot;
    current_->batch = batch;
    BeginPull(*current_, step, rows);
  }
  if (absl::Status status = EndPull(*current_); !status.ok()) return status;
  return absl::MakeConstSpan(current_->views);
}

absl::StatusOr<absl::Span<const RowsView>> RowExchange::FetchForEvaluation(uint64_t step,
                                                                           absl::Span<const BatchRows> rows) {
  if (Slot* const ahead = std::exchange(next_, nullptr); ahead != nullptr) {
    if (absl::Status status = Drop(*ahead); !status.ok()) return status;
  }
  const absl::StatusOr<Slot*> slot = TakeSlot();
  if (!slot.ok()) return slot.status();
  current_ = *slot;
  current_->batch.reset();
  BeginPull(*current_, step, rows);
  if (absl::Status status = EndPull(*current_); !status.ok()) return status;
  return absl::MakeConstSpan(current_->views);
}

absl::Status RowExchange::Push(uint64_t step, uint32_t examples, bool last_of_step,
                               std::optional<double> schedule_position) {
  if (current_ == nullptr) return absl::InternalError("row exchange: got a push before any batch, want Fetch first");
  if (absl::Status status = AwaitPush(*current_); !status.ok()) return status;
  std::vector<RowPush> pushes;
  for (size_t t = 0; t < current_->rows.size(); ++t) {
    const BatchRows& rows = current_->rows[t];
    if (rows.ids.empty()) continue;
    std::vector<float>& gradients = current_->gradients[t];
    gradients.resize(current_->values[t].size());
    if (absl::Status status = model_->GetRowGradients(t, absl::MakeSpan(gradients)); !status.ok()) return status;
    RowPush& push = pushes.emplace_back();
    push.table_id = options_.first_id + t;
    push.ids = rows.ids;
    push.gradients = gradients;
    push.versions = current_->versions[t];
    push.uses = rows.uses;
    push.clocks = &current_->clocks;
    stats_.pushed += rows.ids.size();
  }
  current_->push_number = ++pushes_;
  current_->push = client_->PushRows(step, examples, pushes, last_of_step, schedule_position);
  return absl::OkStatus();
}

absl::Status RowExchange::PushNothing(uint64_t step, bool last_of_step) {
  const absl::StatusOr<Slot*> slot = TakeSlot();
  if (!slot.ok()) return slot.status();
  (*slot)->push_number = ++pushes_;
  (*slot)->push = client_->PushRows(step, 0, {}, last_of_step);
  return absl::OkStatus();
}

absl::Status RowExchange::AwaitPushes() {
  for (Slot& slot : slots_) {
    if (absl::Status status = AwaitPush(slot); !status.ok()) return status;
  }
  return absl::OkStatus();
}

RowStats RowExchange::TakeStats() { return std::exchange(stats_, RowStats()); }

}  // namespace ballast
