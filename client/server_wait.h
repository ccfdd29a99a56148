// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "common/trace/timeline_recorder.h"

namespace ballast {

// Waits for a client's calls in a thread that has nothing else to do, and records the waits. Thread safety: none.
class ServerWait {
 public:
  struct Options {
    // Receives responses in the waiting thread; see Client::Help. For waits that end as soon as a response is there.
    bool helps = false;
    // Once it is true, a wait ends within one second.
    const std::atomic<bool>* interrupted = nullptr;
    // Records waits; may be null. Must outlive this.
    TimelineRecorder* timeline = nullptr;
  };

  // The client must outlive this.
  ServerWait(Client* client, const Options& options) : client_(client), options_(options) {}

  // Calls `ready`, which waits up to the given time, until it returns true. `what` names the wait in the timeline.
  // Returns the time that it waited, without that which it spent on receiving. CANCELLED if interrupted.
  absl::StatusOr<absl::Duration> Await(absl::FunctionRef<bool(absl::Duration)> ready, absl::string_view what);

 private:
  // Waits for a moment, and returns whether `ready`. Adds to `helped` the time that it spent on receiving.
  bool AwaitOnce(absl::FunctionRef<bool(absl::Duration)> ready, absl::Duration& helped);

  Client* const client_;
  const Options options_;
};

}  // namespace ballast
