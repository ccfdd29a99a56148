// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/trace/call_timeline.h"
#include "common/trace/timeline_recorder.h"

// Converts timelines to Chrome's Trace Event Format (JSON), which Perfetto and chrome://tracing open.
namespace ballast {

// Returns the text of a worker's file: a process named after its rank, with one thread per row, the last one for its
// calls. Spans of a row that overlap without nesting go to additional rows: "push", "push 2".
std::string WorkerTraceJson(const TimelineRecorder::Recording& recording, const CallTimeline::Recording& calls,
                            uint32_t rank, absl::string_view device);

// Returns the text of a server's file: a process named after its rank, with a row of calls, each with its phases. A
// viewer draws an arrow to a call from the worker's span of it, if both are in one file.
std::string ServerTraceJson(const CallTimeline::Recording& calls, uint32_t rank);

struct MergedTrace {
  std::string json;
  // Number of spans and calls for which the timelines had no room.
  int64_t left_out = 0;
};

// Merges such texts into one, with all processes on one time axis: a server and its standby, which have the same rank,
// stay apart. INVALID_ARGUMENT if one is not such a text.
absl::StatusOr<MergedTrace> MergeTraces(absl::Span<const std::string> traces);

// Checks before the run that the file can be written: INVALID_ARGUMENT with the path and the reason.
absl::Status CheckTracePath(const std::string& path);

// Text about dropped spans and calls: "12 spans left out of the timeline, which holds 262144; …". Empty if there are
// none.
std::string LeftOutText(const TimelineRecorder::Recording& recording, const CallTimeline::Recording& calls);

}  // namespace ballast
