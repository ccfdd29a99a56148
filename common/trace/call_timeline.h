// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/trace/timeline_recorder.h"
#include "common/trace/trace_context.h"

namespace ballast {

// One attempt of a call, as its client or its server saw it.
struct CallSpan {
  static constexpr uint32_t kNone = 0xffffffff;

  // A stay in one phase of the call.
  struct Part {
    // Static: "apply".
    absl::string_view name;
    absl::Time begin;
    absl::Time end;
  };

  // gRPC's name: "/ballast.v1.ParameterService/Push".
  std::string method;
  // This span.
  TraceContext context;
  // The span that caused this one; 0: none.
  uint64_t parent = 0;
  absl::Time begin;
  absl::Time end;
  // The phases of a server's span, in their order.
  std::vector<Part> parts;
  absl::StatusCode code = absl::StatusCode::kOk;
  // On a client the shard, on a server the worker; kNone: unknown.
  uint32_t peer = kNone;
  // The training step, from 1; of a pull, the step whose update it waits for. 0: none.
  uint64_t step = 0;
  uint64_t request_bytes = 0;
  uint64_t response_bytes = 0;
};

// Owns the recorded calls of a process. Invariant: memory is bounded; calls beyond `most_calls` are counted and
// dropped. Does not choose which calls to record. Thread safety: all methods may be called from any thread.
class CallTimeline {
 public:
  // About 30 MiB of calls.
  static constexpr size_t kMostCalls = size_t{1} << 16;

  struct Recording {
    // In the order in which they ended.
    std::vector<CallSpan> calls;
    uint64_t left_out = 0;
  };

  explicit CallTimeline(size_t most_calls = kMostCalls) : most_calls_(most_calls) {}

  void Add(CallSpan call);
  Recording Copy() const;

 private:
  const size_t most_calls_;
  mutable absl::Mutex mutex_;
  std::vector<CallSpan> calls_ ABSL_GUARDED_BY(mutex_);
  uint64_t left_out_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Owns what a client needs to trace its calls. Each call names the trace and a span of its own; calls of recorded steps
// are sampled, here and by the server. Thread safety: all methods may be called from any thread.
class CallTracer {
 public:
  // Spans belong to `trace` and, if it has a span, were caused by that. `timeline` says which steps are recorded, and
  // outlives this. Null: nothing is recorded here, and servers record what the trace's own sampling says.
  CallTracer(const TraceContext& trace, const TimelineRecorder* timeline) : trace_(trace), timeline_(timeline) {}

  // Returns a new span that begins now.
  CallSpan Begin(absl::string_view method) const;
  // Records a span that ends now, if it is sampled.
  void End(CallSpan call);

  const TraceContext& trace() const { return trace_; }
  const CallTimeline& calls() const { return calls_; }

 private:
  const TraceContext trace_;
  const TimelineRecorder* const timeline_;
  CallTimeline calls_;
};

}  // namespace ballast
