// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <deque>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/device/cuda/stream/cuda_status.h"

namespace ballast {

// Numbers the operations of a stream and finds events to wait for them. An event is recorded on demand and serves
// every operation before it: a wait may last a little longer than necessary, but never too short, and operations that
// nobody waits for cost nothing. If waits are foreseen, NoteEnd() keeps them from including later operations. Thread
// safety: none.
class Timeline {
 public:
  explicit Timeline(cudaStream_t stream) : stream_(stream) {}

  // Number of operations in the stream so far.
  uint64_t issued() const { return issued_; }
  // Counts one more operation; returns its number.
  uint64_t Issued() { return ++issued_; }

  // Records an event now, so that a wait for earlier operations does not include later ones.
  absl::Status NoteEnd();

  // Makes another stream wait for operation `number`, at most issued(), and all earlier ones.
  absl::Status MakeWait(cudaStream_t stream, uint64_t number);

 private:
  struct Mark {
    uint64_t number;
    Event event;
  };

  // Removes marks that the stream has passed.
  void Prune();
  absl::StatusOr<Event> TakeEvent();

  const cudaStream_t stream_;
  uint64_t issued_ = 0;
  // Number of the last operation known to be done.
  uint64_t done_ = 0;
  // Sorted by number.
  std::deque<Mark> marks_;
  std::vector<Event> spare_;
};

}  // namespace ballast
