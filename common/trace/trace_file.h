// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/trace/timeline_recorder.h"

// Timelines as files in Chrome's Trace Event Format (JSON), which Perfetto and chrome://tracing open.
namespace ballast {

// The text of a worker's file: a process named after its rank with a thread for each row. Spans of one row that overlap
// without one lying within the other are put on rows of their own: "push", "push 2".
std::string TraceJson(const TimelineRecorder::Recording& recording, uint32_t rank, absl::string_view device);

struct MergedTrace {
  std::string json;
  // Spans that the timelines had no room for.
  int64_t left_out = 0;
};

// One text with the processes of all, each such a text, on one time axis. INVALID_ARGUMENT where one is something else.
absl::StatusOr<MergedTrace> MergeTraces(absl::Span<const std::string> traces);

// Whether a file can be written there, before there is one: INVALID_ARGUMENT names the path and says why not.
absl::Status CheckTracePath(const std::string& path);

// What was left out, for people: "worker 0: 12 spans more than the 262144 that …"; empty where nothing was.
std::string LeftOutText(const TimelineRecorder::Recording& recording);

}  // namespace ballast
