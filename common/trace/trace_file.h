// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/trace/timeline_recorder.h"

// Converts timelines to Chrome's Trace Event Format (JSON), which Perfetto and chrome://tracing open.
namespace ballast {

// Returns the text of a worker's file: a process named after its rank, with one thread per row. Spans of a row that
// overlap without nesting go to additional rows: "push", "push 2".
std::string TraceJson(const TimelineRecorder::Recording& recording, uint32_t rank, absl::string_view device);

struct MergedTrace {
  std::string json;
  // Number of spans for which the timelines had no room.
  int64_t left_out = 0;
};

// Merges such texts into one, with all processes on one time axis. INVALID_ARGUMENT if one is not such a text.
absl::StatusOr<MergedTrace> MergeTraces(absl::Span<const std::string> traces);

// Checks before the run that the file can be written: INVALID_ARGUMENT with the path and the reason.
absl::Status CheckTracePath(const std::string& path);

// Text about dropped spans: "12 spans left out of the timeline, which holds 262144; …". Empty if there are none.
std::string LeftOutText(const TimelineRecorder::Recording& recording);

}  // namespace ballast
