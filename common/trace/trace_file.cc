// SPDX-License-Identifier: Apache-2.0
#include "common/trace/trace_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/text/json_fields.h"

namespace ballast {
namespace {

using Json = nlohmann::ordered_json;

// Thread ids reserved per row for its lanes; viewers sort by them.
constexpr int kLanesPerRow = 1000;

// The format uses microseconds.
double Microseconds(absl::Duration duration) { return absl::ToInt64Nanoseconds(duration) / 1000.0; }

// Spans that follow or contain each other, like those of one thread.
struct Lane {
  // Ends of the spans that are still open, the innermost last.
  std::vector<absl::Time> open;

  bool Take(const TimelineSpan& span) {
    while (!open.empty() && open.back() <= span.begin) open.pop_back();
    if (!open.empty() && open.back() < span.end) return false;
    open.push_back(span.end);
    return true;
  }
};

std::string Metadata(absl::string_view what, uint32_t process, int thread, const Json& arguments) {
  Json event = {{"ph", "M"}, {"name", std::string(what)}, {"pid", process}};
  if (thread > 0) event["tid"] = thread;
  event["args"] = arguments;
  return JsonLine(event);
}

// Events of one row: the names of its lanes, then its spans. A worker without a GPU has no row for one.
std::vector<std::string> RowEvents(TimelineRow row, const TimelineRecorder::Recording& recording, uint32_t process,
                                   absl::Time origin) {
  std::vector<TimelineSpan> spans;
  std::copy_if(recording.spans.begin(), recording.spans.end(), std::back_inserter(spans),
               [&](const TimelineSpan& span) { return span.row == row; });
  if (spans.empty() && row == TimelineRow::kGpu) return {};
  // If spans begin together, the longest comes first, because it contains the others.
  std::stable_sort(spans.begin(), spans.end(), [](const TimelineSpan& a, const TimelineSpan& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
  });
  std::vector<Lane> lanes(1);
  std::vector<std::string> events;
  for (const TimelineSpan& span : spans) {
    size_t lane = 0;
    while (!lanes[lane].Take(span)) {
      if (++lane == lanes.size()) lanes.emplace_back();
    }
    Json arguments = {{"step", span.step}};
    if (span.bytes > 0) arguments["bytes"] = span.bytes;
    events.push_back(JsonLine({{"ph", "X"},
                               {"name", recording.names[span.name]},
                               {"pid", process},
                               {"tid", (static_cast<int>(row) + 1) * kLanesPerRow + static_cast<int>(lane)},
                               {"ts", Microseconds(span.begin - origin)},
                               {"dur", Microseconds(span.end - span.begin)},
                               {"args", std::move(arguments)}}));
  }
  std::vector<std::string> named;
  for (size_t lane = 0; lane < lanes.size(); ++lane) {
    const int thread = (static_cast<int>(row) + 1) * kLanesPerRow + static_cast<int>(lane);
    const absl::string_view name = TimelineRowName(row);
    named.push_back(Metadata("thread_name", process, thread,
                             {{"name", lane == 0 ? std::string(name) : absl::StrCat(name, " ", lane + 1)}}));
    named.push_back(Metadata("thread_sort_index", process, thread, {{"sort_index", thread}}));
  }
  named.insert(named.end(), events.begin(), events.end());
  return named;
}

// Formats the whole object, one event per line. `origin` is the time from which all others count.
std::string Text(absl::Span<const std::string> events, int64_t origin_ns, const Json& workers) {
  const Json other = {{"origin_ns", origin_ns}, {"workers", workers}};
  return absl::StrCat("{\"displayTimeUnit\":\"ms\",\"otherData\":", JsonLine(other), ",\"traceEvents\":[\n",
                      absl::StrJoin(events, ",\n"), "\n]}\n");
}

// A parsed trace text.
struct Trace {
  int64_t origin_ns = 0;
  Json workers;
  Json events;
};

absl::StatusOr<Trace> Parse(const std::string& text) {
  absl::StatusOr<Json> object = ParseJsonObject(text);
  if (!object.ok()) return object.status();
  const auto other = object->find("otherData");
  const auto events = object->find("traceEvents");
  if (other == object->end() || !other->is_object() || events == object->end() || !events->is_array()) {
    return absl::InvalidArgumentError("not a trace, want an object with otherData and traceEvents");
  }
  const absl::StatusOr<int64_t> origin = CountField(*other, "origin_ns");
  if (!origin.ok()) return origin.status();
  const auto workers = other->find("workers");
  if (workers == other->end() || !workers->is_array() ||
      !std::all_of(workers->begin(), workers->end(), [](const Json& worker) { return worker.is_object(); })) {
    return absl::InvalidArgumentError("\"workers\" is not a list of objects");
  }
  for (const Json& event : *events) {
    const auto time = event.is_object() ? event.find("ts") : event.end();
    if (!event.is_object() || (time != event.end() && !time->is_number())) {
      return absl::InvalidArgumentError(absl::StrCat("got the event ", JsonLine(event).substr(0, 60)));
    }
  }
  return Trace{*origin, std::move(*workers), std::move(*events)};
}

}  // namespace

std::string TraceJson(const TimelineRecorder::Recording& recording, uint32_t rank, absl::string_view device) {
  absl::Time origin = absl::InfiniteFuture();
  for (const TimelineSpan& span : recording.spans) origin = std::min(origin, span.begin);
  if (recording.spans.empty()) origin = absl::UnixEpoch();
  // Viewers treat process 0 as the idle process.
  const uint32_t process = rank + 1;
  std::vector<std::string> events = {Metadata("process_name", process, 0, {{"name", absl::StrCat("worker ", rank)}}),
                                     Metadata("process_labels", process, 0, {{"labels", std::string(device)}}),
                                     Metadata("process_sort_index", process, 0, {{"sort_index", rank}})};
  for (int row = 0; row < kTimelineRows; ++row) {
    std::vector<std::string> more = RowEvents(static_cast<TimelineRow>(row), recording, process, origin);
    std::move(more.begin(), more.end(), std::back_inserter(events));
  }
  const Json worker = {{"rank", rank},
                       {"first_step", recording.steps.first},
                       {"last_step", recording.steps.last},
                       {"spans", recording.spans.size()},
                       {"left_out", recording.left_out}};
  return Text(events, absl::ToUnixNanos(origin), Json::array({worker}));
}

absl::StatusOr<MergedTrace> MergeTraces(absl::Span<const std::string> texts) {
  std::vector<Trace> traces;
  std::optional<int64_t> origin;
  for (const std::string& text : texts) {
    absl::StatusOr<Trace> trace = Parse(text);
    if (!trace.ok()) return trace.status();
    // A trace without spans has no origin.
    if (trace->origin_ns > 0) origin = std::min(origin.value_or(trace->origin_ns), trace->origin_ns);
    traces.push_back(*std::move(trace));
  }
  MergedTrace merged;
  std::vector<std::string> events;
  Json workers = Json::array();
  for (Trace& trace : traces) {
    const double later = (trace.origin_ns - origin.value_or(0)) / 1000.0;
    for (Json& event : trace.events) {
      if (event.contains("ts")) {
        // Rounded to whole nanoseconds, so that adjacent spans stay adjacent.
        event["ts"] = std::round((event["ts"].get<double>() + later) * 1000) / 1000;
      }
      events.push_back(JsonLine(event));
    }
    for (const Json& worker : trace.workers) {
      const absl::StatusOr<int64_t> left_out = CountField(worker, "left_out");
      if (!left_out.ok()) return left_out.status();
      merged.left_out += *left_out;
      workers.push_back(worker);
    }
  }
  merged.json = Text(events, origin.value_or(0), workers);
  return merged;
}

absl::Status CheckTracePath(const std::string& path) {
  const auto refuse = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("--trace: cannot write \"", path, "\": ", why));
  };
  if (path.empty()) return refuse("want a file name");
  struct stat info;
  if (stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    return refuse(S_ISDIR(info.st_mode) ? "it is a directory" : "it is not a regular file");
  }
  // The file is written under a temporary name and renamed, so the directory must be writable.
  const std::string probe = absl::StrCat(path, ".", getpid(), ".probe");
  const int fd = open(probe.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd < 0) return refuse(strerror(errno));
  close(fd);
  unlink(probe.c_str());
  return absl::OkStatus();
}

std::string LeftOutText(const TimelineRecorder::Recording& recording) {
  if (recording.left_out == 0) return "";
  return absl::StrCat(recording.left_out, " spans left out of the timeline, which holds ", recording.spans.size(),
                      "; choose fewer steps (--trace_steps ", recording.steps.first, "-",
                      recording.steps.first + (recording.steps.last - recording.steps.first) / 2, ")");
}

}  // namespace ballast
