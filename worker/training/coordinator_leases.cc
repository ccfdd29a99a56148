// SPDX-License-Identifier: Apache-2.0
#include "worker/training/coordinator_leases.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"

namespace ballast {
namespace {

// Pause between two looks for new rows, unless looking takes long.
constexpr absl::Duration kLookPause = absl::Milliseconds(50);
// Share of the time that a worker without rows spends looking, at most 1 / (1 + kPauseShare).
constexpr int kPauseShare = 10;
// Time without rows after which the coordinator is asked again: data of lost workers may have returned to it.
constexpr absl::Duration kAskInterval = absl::Milliseconds(500);

// Asks the coordinator until it responds, or the job does not gather in time.
absl::StatusOr<v1::AcquireLeaseResponse> Acquire(CoordinatorLink* link, absl::Duration gather_timeout,
                                                 const std::optional<v1::StreamSpan>& found = std::nullopt) {
  while (true) {
    absl::StatusOr<v1::AcquireLeaseResponse> response = link->AcquireLease(gather_timeout, found);
    const bool running = link->condition().state == v1::JOB_STATE_RUNNING;
    if (!absl::IsDeadlineExceeded(response.status()) || !running) return response;
  }
}

}  // namespace

absl::StatusOr<std::optional<LeasedData>> CoordinatorLeases::Next() {
  absl::StatusOr<v1::AcquireLeaseResponse> response = Acquire(link_, gather_timeout_);
  if (!response.ok()) return response.status();
  if (response->finished()) return std::nullopt;
  if (!response->has_lease()) return LeasedData{{.epoch = response->epochs_done()}};
  return LeasedData{FromProto(response->lease())};
}

absl::StatusOr<std::optional<LeasedData>> StreamLeases::Next() {
  std::optional<v1::StreamSpan> found;
  while (true) {
    absl::StatusOr<v1::AcquireLeaseResponse> response = Acquire(link_, options_.gather_timeout, found);
    if (!response.ok()) return response.status();
    if (response->finished()) return std::nullopt;
    if (response->has_lease()) {
      absl::StatusOr<LeasedData> data = WithRows(FromProto(response->lease()));
      if (!data.ok()) return data.status();
      return *std::move(data);
    }
    absl::StatusOr<v1::StreamSpan> next =
        Look(FromProto(response->stream_position()), response->max_stream_examples());
    if (!next.ok()) return next.status();
    found = *std::move(next);
  }
}

absl::StatusOr<v1::StreamSpan> StreamLeases::Look(const StreamPosition& position, uint64_t max_examples) {
  absl::Time now = absl::Now();
  const absl::Time ask = now + kAskInterval;
  const bool held = found_.has_value() && found_->span.begin == position && found_->span.examples <= max_examples;
  if (held) {
    // The coordinator leases nothing for now.
    link_->AwaitCancel(kLookPause);
    return ToProto(found_->span);
  }
  found_.reset();
  std::optional<absl::Time> first_found;
  while (max_examples > 0) {
    const absl::Time begin = now;
    absl::StatusOr<std::optional<StreamReader::Rows>> rows = reader_->Find(position, max_examples);
    if (!rows.ok()) return rows.status();
    now = absl::Now();
    if (rows->has_value()) {
      if (!first_found.has_value()) first_found = now;
      const uint64_t enough = std::min(options_.batch_size, max_examples);
      if ((*rows)->span.examples >= enough || now - *first_found >= options_.linger) {
        if (absl::Status status = options_.check(*(*rows)->data); !status.ok()) return status;
        found_ = *std::move(rows);
        return ToProto(found_->span);
      }
    } else if (now >= ask) {
      break;
    }
    if (link_->AwaitCancel(std::max(kLookPause, kPauseShare * (now - begin)))) break;
    now = absl::Now();
  }
  if (max_examples == 0) link_->AwaitCancel(kAskInterval);
  v1::StreamSpan nothing;
  *nothing.mutable_begin() = ToProto(position);
  return nothing;
}

absl::StatusOr<LeasedData> StreamLeases::WithRows(const DataLease& lease) {
  if (!lease.span.has_value()) return absl::InternalError("the lease has no rows, want those of a stream");
  if (found_.has_value() && found_->span == *lease.span) {
    LeasedData data{lease, std::move(found_->data)};
    found_.reset();
    return data;
  }
  // Rows of a worker that was lost.
  absl::StatusOr<std::shared_ptr<const Dataset>> rows = reader_->Read(*lease.span);
  if (!rows.ok()) return rows.status();
  if (absl::Status status = options_.check(**rows); !status.ok()) return status;
  return LeasedData{lease, *std::move(rows)};
}

}  // namespace ballast
