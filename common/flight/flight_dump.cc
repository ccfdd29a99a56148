// SPDX-License-Identifier: Apache-2.0
#include "common/flight/flight_dump.h"

#include <unistd.h>

#include <iostream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/program/this_process.h"
#include "common/storage/file.h"
#include "common/text/json_fields.h"
#include "nlohmann/json.hpp"

namespace ballast {
namespace {

using Json = nlohmann::ordered_json;

constexpr absl::string_view kFormat = "ballast-flight-1";
// A second dump within this time waits, so that many timeouts at once make few files' worth of writing.
constexpr absl::Duration kPause = absl::Seconds(1);
// Longest line that a dump can have, for readers of damaged ones.
constexpr size_t kMaxLine = 64 << 10;

// Never destroyed: at its exit, a forked process could wait for a lock of Abseil's that a thread of its parent held.
absl::Mutex& dumper_mutex = *new absl::Mutex;
FlightDumper* dumper ABSL_GUARDED_BY(dumper_mutex) = nullptr;

double Seconds(absl::Time time) { return static_cast<double>(absl::ToUnixMicros(time)) * 1e-6; }

absl::Time TimeOf(double seconds) { return absl::FromUnixMicros(static_cast<int64_t>(seconds * 1e6 + 0.5)); }

Json EventJson(const FlightEvent& event, const std::map<uint32_t, std::string>& tensors) {
  Json json = {{"time", Seconds(event.time)},
               {"what", FlightActivityName(event.activity)},
               {"edge", event.edge == FlightEdge::kBegin ? "begin" : "end"}};
  if (event.code != absl::StatusCode::kOk) json["code"] = absl::StatusCodeToString(event.code);
  if (event.peer != FlightEvent::kNone) json["peer"] = event.peer;
  json["step"] = event.step;
  if (event.tensor != FlightEvent::kNone) {
    const auto named = tensors.find(event.tensor);
    json["tensor"] = event.tensor;
    if (named != tensors.end()) json["name"] = named->second;
    json["slice"] = event.slice;
  }
  if (event.amount != 0) json["amount"] = event.amount;
  return json;
}

template <typename T>
T NumberOr(const Json& json, const char* key, T otherwise) {
  const auto field = json.find(key);
  return field != json.end() && field->is_number_unsigned() ? field->get<T>() : otherwise;
}

std::string TextOr(const Json& json, const char* key) {
  const auto field = json.find(key);
  return field != json.end() && field->is_string() ? field->get<std::string>() : "";
}

absl::Time TimeField(const Json& json) {
  const auto field = json.find("time");
  const double seconds = field != json.end() && field->is_number() ? field->get<double>() : 0;
  return seconds > 0 && seconds < 1e11 ? TimeOf(seconds) : absl::UnixEpoch();
}

// Returns false if the name is no activity's.
bool ParseEvent(const Json& json, FlightRecorder::Copy& recorded) {
  FlightEvent event;
  const std::string what = TextOr(json, "what");
  int activity = 0;
  while (activity < kFlightActivities && FlightActivityName(static_cast<FlightActivity>(activity)) != what) ++activity;
  if (activity == kFlightActivities) return false;
  event.time = TimeField(json);
  event.activity = static_cast<FlightActivity>(activity);
  event.edge = TextOr(json, "edge") == "end" ? FlightEdge::kEnd : FlightEdge::kBegin;
  const std::string code = TextOr(json, "code");
  for (int i = 0; i <= 16; ++i) {
    if (absl::StatusCodeToString(static_cast<absl::StatusCode>(i)) == code) {
      event.code = static_cast<absl::StatusCode>(i);
    }
  }
  event.peer = NumberOr(json, "peer", FlightEvent::kNone);
  event.step = NumberOr<uint64_t>(json, "step", 0);
  event.tensor = NumberOr(json, "tensor", FlightEvent::kNone);
  event.slice = NumberOr<uint32_t>(json, "slice", 0);
  event.amount = NumberOr<uint64_t>(json, "amount", 0);
  if (const std::string name = TextOr(json, "name"); !name.empty()) recorded.tensors[event.tensor] = name;
  recorded.events.push_back(event);
  return true;
}

}  // namespace

std::string FlightDumpText(const FlightDump& dump) {
  std::string text = absl::StrCat(JsonLine({{"format", kFormat},
                                            {"process", dump.process},
                                            {"pid", dump.pid},
                                            {"version", dump.version},
                                            {"reason", dump.reason},
                                            {"time", Seconds(dump.time)},
                                            {"events", dump.recorded.events.size()},
                                            {"overwritten", dump.recorded.overwritten}}),
                                  "\n");
  for (const FlightEvent& event : dump.recorded.events) {
    absl::StrAppend(&text, JsonLine(EventJson(event, dump.recorded.tensors)), "\n");
  }
  return text;
}

absl::StatusOr<FlightDump> ParseFlightDump(absl::string_view text) {
  FlightDump dump;
  dump.cut_off = !text.empty() && text.back() != '\n';
  if (dump.cut_off) text = text.substr(0, text.rfind('\n') == absl::string_view::npos ? 0 : text.rfind('\n') + 1);
  size_t number = 0;
  uint64_t events = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    ++number;
    const absl::StatusOr<Json> json =
        line.size() > kMaxLine ? absl::InvalidArgumentError("it is too long") : ParseJsonObject(line);
    if (!json.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", number, " of the flight dump: ", json.status().message()));
    }
    if (number == 1) {
      if (TextOr(*json, "format") != kFormat) break;
      dump.process = TextOr(*json, "process");
      dump.pid = NumberOr<int64_t>(*json, "pid", 0);
      dump.version = TextOr(*json, "version");
      dump.reason = TextOr(*json, "reason");
      dump.time = TimeField(*json);
      events = NumberOr<uint64_t>(*json, "events", 0);
      dump.recorded.overwritten = NumberOr<uint64_t>(*json, "overwritten", 0);
    } else if (!ParseEvent(*json, dump.recorded)) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", number, " of the flight dump: got \"", TextOr(*json, "what"), "\", want an activity"));
    }
  }
  if (dump.process.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the flight dump has no first line with \"format\":\"", kFormat, "\""));
  }
  dump.cut_off |= dump.recorded.events.size() < events;
  return dump;
}

FlightDumper::FlightDumper(std::string directory, std::string process)
    : directory_(std::move(directory)), process_(std::move(process)), writer_([this] { WriteRequested(); }) {
  absl::MutexLock lock(&dumper_mutex);
  dumper = this;
}

FlightDumper::~FlightDumper() {
  {
    absl::MutexLock lock(&dumper_mutex);
    if (dumper == this) dumper = nullptr;
  }
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  writer_.join();
}

void FlightDumper::Request(std::string reason) {
  absl::MutexLock lock(&dumper_mutex);
  if (dumper == nullptr) return;
  absl::MutexLock request(&dumper->mutex_);
  dumper->reason_ = std::move(reason);
}

FlightDump TakeFlightDump(const std::string& process, std::string reason) {
  FlightDump dump;
  dump.process = process;
  dump.pid = getpid();
  dump.version = kVersion;
  dump.reason = std::move(reason);
  dump.time = absl::Now();
  dump.recorded = FlightRecorder::OfProcess().Read();
  return dump;
}

void FlightDumper::Write(const std::string& reason) const {
  if (directory_.empty()) return;
  const std::string path =
      absl::StrCat(directory_, "/flight-", absl::StrReplaceAll(process_, {{" ", "-"}}), "-", getpid(), ".jsonl");
  const absl::Status written = WriteFileAtomically(path, {FlightDumpText(TakeFlightDump(process_, reason))});
  // The dump is not what the process is for.
  if (!written.ok()) std::cerr << "warning: no flight dump: " << written.message() << std::endl;
}

std::function<void()> DumpAtQuit(const std::string& directory) {
  if (directory.empty()) return nullptr;
  return [] { FlightDumper::Request("SIGQUIT"); };
}

void FlightDumper::WriteRequested() {
  while (true) {
    std::string reason;
    {
      const auto wake = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !reason_.empty(); };
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&wake));
      if (reason_.empty()) return;
      reason.swap(reason_);
    }
    Write(reason);
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(&stopping_), kPause);
  }
}

}  // namespace ballast
