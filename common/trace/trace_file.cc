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
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/text/json_fields.h"

namespace ballast {
namespace {

using Json = nlohmann::ordered_json;

// Thread ids reserved per row for its lanes; viewers sort by them. The calls are in the last row.
constexpr int kLanesPerRow = 1000;
constexpr int kCallsRow = kTimelineRows;

// Viewers treat process 0 as the idle process. Servers come after the workers, of which there are at most 4096.
constexpr uint32_t kFirstWorker = 1;
constexpr uint32_t kFirstServer = 10'000;

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

// Names of a row's lanes: "push", "push 2".
std::vector<std::string> LaneNames(absl::string_view name, int row, size_t lanes, uint32_t process) {
  std::vector<std::string> events;
  for (size_t lane = 0; lane < lanes; ++lane) {
    const int thread = (row + 1) * kLanesPerRow + static_cast<int>(lane);
    events.push_back(Metadata("thread_name", process, thread,
                              {{"name", lane == 0 ? std::string(name) : absl::StrCat(name, " ", lane + 1)}}));
    events.push_back(Metadata("thread_sort_index", process, thread, {{"sort_index", thread}}));
  }
  return events;
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
  std::vector<std::string> named = LaneNames(TimelineRowName(row), static_cast<int>(row), lanes.size(), process);
  named.insert(named.end(), events.begin(), events.end());
  return named;
}

// A span of a call and the spans of its phases. On a client also the begin of an arrow, on a server its end.
void AddCallEvents(const CallSpan& call, bool server, uint32_t process, int thread, absl::Time origin,
                   std::vector<std::string>& events) {
  const absl::string_view method = absl::StripPrefix(call.method, "/");
  const size_t slash = method.find('/');
  // The names of OpenTelemetry's conventions for RPC spans.
  Json arguments = {{"rpc.system", "grpc"},
                    {"rpc.service", std::string(method.substr(0, slash))},
                    {"rpc.method", std::string(method.substr(slash == method.npos ? 0 : slash + 1))},
                    {"rpc.grpc.status_code", static_cast<int>(call.code)},
                    {"trace_id", call.context.TraceId()},
                    {"span_id", SpanIdText(call.context.span)}};
  if (call.parent != 0) arguments["parent_span_id"] = SpanIdText(call.parent);
  if (call.peer != CallSpan::kNone) arguments[server ? "worker" : "shard"] = call.peer;
  arguments["step"] = call.step;
  arguments["request_bytes"] = call.request_bytes;
  arguments["response_bytes"] = call.response_bytes;
  const auto add = [&](absl::string_view name, absl::Time begin, absl::Time end, Json with) {
    events.push_back(JsonLine({{"ph", "X"},
                               {"name", std::string(name)},
                               {"pid", process},
                               {"tid", thread},
                               {"ts", Microseconds(begin - origin)},
                               {"dur", Microseconds(std::max(end - begin, absl::ZeroDuration()))},
                               {"args", std::move(with)}}));
  };
  add(method, call.begin, call.end, std::move(arguments));
  for (const CallSpan::Part& part : call.parts) add(part.name, part.begin, part.end, {{"step", call.step}});
  Json arrow = {{"ph", server ? "f" : "s"},
                {"cat", "rpc"},
                {"name", "message"},
                {"id", SpanIdText(server ? call.parent : call.context.span)},
                {"pid", process},
                {"tid", thread},
                {"ts", Microseconds(call.begin - origin)}};
  if (server) arrow["bp"] = "e";
  events.push_back(JsonLine(arrow));
}

// Events of the row of calls: the names of its lanes, then the calls. Those that overlap have different lanes, even if
// one contains the other: they are not one another's parts.
std::vector<std::string> CallEvents(const CallTimeline::Recording& recording, bool server, uint32_t process,
                                    absl::Time origin) {
  std::vector<const CallSpan*> calls;
  for (const CallSpan& call : recording.calls) calls.push_back(&call);
  std::stable_sort(calls.begin(), calls.end(),
                   [](const CallSpan* a, const CallSpan* b) { return a->begin < b->begin; });
  // By lane, the end of its last call.
  std::vector<absl::Time> ends;
  std::vector<std::string> events;
  for (const CallSpan* call : calls) {
    const auto free = std::find_if(ends.begin(), ends.end(), [&](absl::Time end) { return end <= call->begin; });
    const int lane = static_cast<int>(free - ends.begin());
    if (free == ends.end()) ends.emplace_back();
    ends[lane] = call->end;
    AddCallEvents(*call, server, process, (kCallsRow + 1) * kLanesPerRow + lane, origin, events);
  }
  std::vector<std::string> named = LaneNames("calls", kCallsRow, ends.size(), process);
  named.insert(named.end(), events.begin(), events.end());
  return named;
}

// Formats the whole object, one event per line. `origin` is the time from which all others count.
std::string Text(absl::Span<const std::string> events, int64_t origin_ns, const Json& workers, const Json& servers) {
  const Json other = {{"origin_ns", origin_ns}, {"workers", workers}, {"servers", servers}};
  return absl::StrCat("{\"displayTimeUnit\":\"ms\",\"otherData\":", JsonLine(other), ",\"traceEvents\":[\n",
                      absl::StrJoin(events, ",\n"), "\n]}\n");
}

// A parsed trace text.
struct Trace {
  int64_t origin_ns = 0;
  Json workers;
  Json servers;
  Json events;
};

// Returns a list of objects; an empty one if there is no such field.
absl::StatusOr<Json> ObjectsField(const Json& other, const char* name) {
  const auto objects = other.find(name);
  if (objects == other.end()) return Json::array();
  if (!objects->is_array() ||
      !std::all_of(objects->begin(), objects->end(), [](const Json& object) { return object.is_object(); })) {
    return absl::InvalidArgumentError(absl::StrCat("\"", name, "\" is not a list of objects"));
  }
  return *objects;
}

// Returns whether the event has a process; its id is a number.
bool HasProcess(const Json& event) {
  const auto process = event.find("pid");
  return process != event.end() && process->is_number_unsigned();
}

// Gives the processes of a trace ids that those before it do not have.
void RenumberProcesses(Json& events, std::set<uint64_t>& taken) {
  uint64_t shift = 0;
  std::set<uint64_t> own;
  for (const Json& event : events) {
    if (HasProcess(event)) own.insert(event["pid"].get<uint64_t>());
  }
  const auto is_taken = [&](uint64_t process) { return taken.contains(process + shift); };
  while (std::any_of(own.begin(), own.end(), is_taken)) shift += 2 * kFirstServer;
  for (Json& event : events) {
    if (HasProcess(event)) event["pid"] = event["pid"].get<uint64_t>() + shift;
  }
  for (const uint64_t process : own) taken.insert(process + shift);
}

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
  if (!other->contains("workers")) return absl::InvalidArgumentError("not a trace, want \"workers\"");
  absl::StatusOr<Json> workers = ObjectsField(*other, "workers"), servers = ObjectsField(*other, "servers");
  if (!workers.ok()) return workers.status();
  if (!servers.ok()) return servers.status();
  for (const Json& event : *events) {
    const auto time = event.is_object() ? event.find("ts") : event.end();
    if (!event.is_object() || (time != event.end() && !time->is_number())) {
      return absl::InvalidArgumentError(absl::StrCat("got the event ", JsonLine(event).substr(0, 60)));
    }
  }
  return Trace{*origin, *std::move(workers), *std::move(servers), std::move(*events)};
}

absl::Time Begin(const CallTimeline::Recording& calls) {
  absl::Time begin = absl::InfiniteFuture();
  for (const CallSpan& call : calls.calls) begin = std::min(begin, call.begin);
  return begin;
}

void Append(std::vector<std::string> more, std::vector<std::string>& events) {
  std::move(more.begin(), more.end(), std::back_inserter(events));
}

std::vector<std::string> ProcessNames(const std::string& name, absl::string_view label, uint32_t process) {
  std::vector<std::string> events = {Metadata("process_name", process, 0, {{"name", name}})};
  if (!label.empty()) events.push_back(Metadata("process_labels", process, 0, {{"labels", std::string(label)}}));
  events.push_back(Metadata("process_sort_index", process, 0, {{"sort_index", process}}));
  return events;
}

}  // namespace

std::string WorkerTraceJson(const TimelineRecorder::Recording& recording, const CallTimeline::Recording& calls,
                            uint32_t rank, absl::string_view device) {
  absl::Time origin = Begin(calls);
  for (const TimelineSpan& span : recording.spans) origin = std::min(origin, span.begin);
  if (origin == absl::InfiniteFuture()) origin = absl::UnixEpoch();
  const uint32_t process = kFirstWorker + rank;
  std::vector<std::string> events = ProcessNames(absl::StrCat("worker ", rank), device, process);
  for (int row = 0; row < kTimelineRows; ++row) {
    Append(RowEvents(static_cast<TimelineRow>(row), recording, process, origin), events);
  }
  Append(CallEvents(calls, /*server=*/false, process, origin), events);
  const Json worker = {{"rank", rank},
                       {"first_step", recording.steps.first},
                       {"last_step", recording.steps.last},
                       {"spans", recording.spans.size()},
                       {"calls", calls.calls.size()},
                       {"left_out", recording.left_out + calls.left_out}};
  return Text(events, absl::ToUnixNanos(origin), Json::array({worker}), Json::array());
}

std::string ServerTraceJson(const CallTimeline::Recording& calls, uint32_t rank) {
  absl::Time origin = Begin(calls);
  if (origin == absl::InfiniteFuture()) origin = absl::UnixEpoch();
  const uint32_t process = kFirstServer + rank;
  std::vector<std::string> events = ProcessNames(absl::StrCat("server ", rank), "", process);
  Append(CallEvents(calls, /*server=*/true, process, origin), events);
  const Json server = {{"rank", rank}, {"calls", calls.calls.size()}, {"left_out", calls.left_out}};
  return Text(events, absl::ToUnixNanos(origin), Json::array(), Json::array({server}));
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
  Json workers = Json::array(), servers = Json::array();
  std::set<uint64_t> processes;
  for (Trace& trace : traces) {
    RenumberProcesses(trace.events, processes);
    const double later = (trace.origin_ns - origin.value_or(0)) / 1000.0;
    for (Json& event : trace.events) {
      if (event.contains("ts")) {
        // Rounded to whole nanoseconds, so that adjacent spans stay adjacent.
        event["ts"] = std::round((event["ts"].get<double>() + later) * 1000) / 1000;
      }
      events.push_back(JsonLine(event));
    }
    for (const auto& [from, to] : {std::pair(&trace.workers, &workers), std::pair(&trace.servers, &servers)}) {
      for (const Json& process : *from) {
        const absl::StatusOr<int64_t> left_out = CountField(process, "left_out");
        if (!left_out.ok()) return left_out.status();
        merged.left_out += *left_out;
        to->push_back(process);
      }
    }
  }
  merged.json = Text(events, origin.value_or(0), workers, servers);
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

std::string LeftOutText(const TimelineRecorder::Recording& recording, const CallTimeline::Recording& calls) {
  if (recording.left_out + calls.left_out == 0) return "";
  return absl::StrCat(recording.left_out, " spans and ", calls.left_out,
                      " calls left out of the timeline, which holds ", recording.spans.size(), " and ",
                      calls.calls.size(), "; choose fewer steps (--trace_steps ", recording.steps.first, "-",
                      recording.steps.first + (recording.steps.last - recording.steps.first) / 2, ")");
}

}  // namespace ballast
