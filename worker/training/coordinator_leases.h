// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ballast/v1/coordinator_service.pb.h"
#include "client/coordinator_link.h"
#include "worker/data/batch_stream.h"
#include "worker/data/datasets/stream_reader.h"

namespace ballast {

// Acquires leases of a job's fixed data from the coordinator. Thread safety: same as LeaseSource.
class CoordinatorLeases : public LeaseSource {
 public:
  // `link` must outlive this. Next waits up to `gather_timeout` while the job gathers, and without limit while it runs:
  // the coordinator detects lost members, so a running job always continues or fails.
  CoordinatorLeases(CoordinatorLink* link, absl::Duration gather_timeout)
      : link_(link), gather_timeout_(gather_timeout) {}

  absl::StatusOr<std::optional<LeasedData>> Next() override;
  void Cancel() override { link_->CancelCalls("the worker stops"); }

 private:
  CoordinatorLink* const link_;
  const absl::Duration gather_timeout_;
};

// Finds rows of an endless stream and leases them from the coordinator, which decides between workers that have found
// the same ones. Thread safety: same as LeaseSource.
class StreamLeases : public LeaseSource {
 public:
  struct Options {
    // Longest wait for the other members of the job.
    absl::Duration gather_timeout;
    uint64_t batch_size = 1;
    // Time that the first rows of an incomplete batch wait for others.
    absl::Duration linger;
    // Refuses rows that the model cannot take, before they are leased.
    std::function<absl::Status(const Dataset&)> check;
  };

  // Both must outlive this.
  StreamLeases(CoordinatorLink* link, StreamReader* reader, Options options)
      : link_(link), reader_(reader), options_(std::move(options)) {}

  // Waits for rows for as long as the job runs.
  absl::StatusOr<std::optional<LeasedData>> Next() override;
  void Cancel() override { link_->CancelCalls("the worker stops"); }

 private:
  // Looks for rows at that position for a while, and leaves them in found_. Returns what to tell the coordinator.
  absl::StatusOr<v1::StreamSpan> Look(const StreamPosition& position, uint64_t max_examples);
  absl::StatusOr<LeasedData> WithRows(const DataLease& lease);

  CoordinatorLink* const link_;
  StreamReader* const reader_;
  const Options options_;
  // Rows that are not leased yet.
  std::optional<StreamReader::Rows> found_;
};

}  // namespace ballast
