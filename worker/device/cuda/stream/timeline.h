// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <deque>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/device/cuda/stream/handles.h"

namespace ballast {

// Numbers the operations of a stream, and finds events to wait for one of them by. An event is recorded when one is
// asked for, and serves every operation up to it: so a wait may be for a little more than was asked, never for less,
// and the many operations that nobody waits for cost nothing. Where waits are foreseen, NoteEnd() keeps them from being
// for what comes later. Thread safety: none.
class Timeline {
 public:
  explicit Timeline(cudaStream_t stream) : stream_(stream) {}

  // Operations in the stream so far.
  uint64_t issued() const { return issued_; }
  // Says that one more is in it; answers its number.
  uint64_t Issued() { return ++issued_; }

  // Records an event now: a wait for what was issued so far is for no more than that.
  absl::Status NoteEnd();

  // Makes another stream wait for the operation of that number, at most issued(), and those before it.
  absl::Status MakeWait(cudaStream_t stream, uint64_t number);

 private:
  struct Mark {
    uint64_t number;
    Event event;
  };

  // Forgets marks that the stream has passed.
  void Prune();
  absl::StatusOr<Event> TakeEvent();

  const cudaStream_t stream_;
  uint64_t issued_ = 0;
  // What the stream is known to have done.
  uint64_t done_ = 0;
  // By rising number.
  std::deque<Mark> marks_;
  std::vector<Event> spare_;
};

}  // namespace ballast
