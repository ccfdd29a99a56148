// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor/flight_report.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/storage/file.h"
#include "common/text/number_text.h"
#include "nlohmann/json.hpp"

namespace ballast {
namespace {

using Json = nlohmann::ordered_json;

// Waits that are shown; a shard that waits for a worker makes one for each message.
constexpr size_t kMaxWaits = 10;

std::string TimeText(absl::Time time) { return absl::FormatTime("%H:%M:%E3S", time, absl::UTCTimeZone()); }

// Returns "push_pull of step 811 (fc/weight) to shard 0", or likewise with words of the activity.
std::string Describe(const FlightEvent& event, const FlightDump& dump) {
  const bool server = absl::StartsWith(dump.process, "server ");
  const std::string peer = event.peer == FlightEvent::kNone ? ""
                           : server                         ? absl::StrCat(" of worker ", event.peer)
                                                            : absl::StrCat(" to shard ", event.peer);
  switch (event.activity) {
    case FlightActivity::kStep:
      return absl::StrCat("step ", event.step);
    case FlightActivity::kData:
      return absl::StrCat("the wait for data of step ", event.step);
    case FlightActivity::kWait:
      return absl::StrCat("the wait of a pull", peer, " at step ", event.step);
    case FlightActivity::kMissing:
      return absl::StrCat("the wait for worker ", event.peer, " at step ", event.step);
    case FlightActivity::kMember:
      return absl::StrCat("the membership", peer);
    case FlightActivity::kLease:
      return absl::StrCat("a lease", peer);
    default:
      break;
  }
  const auto named = dump.recorded.tensors.find(event.tensor);
  const std::string tensor = named == dump.recorded.tensors.end() ? "" : absl::StrCat(" (", named->second, ")");
  return absl::StrCat(FlightActivityName(event.activity), peer, " of step ", event.step, tensor);
}

std::string SinceText(absl::Time time, absl::Time until) {
  return absl::StrCat(DurationText(std::max(0.0, absl::ToDoubleSeconds(until - time))), " before");
}

std::string Ended(const FlightEvent& event, const FlightDump& dump, absl::Time until) {
  const char* const edge = event.edge == FlightEdge::kBegin ? "began " : "ended ";
  const std::string code =
      event.code == absl::StatusCode::kOk ? "" : absl::StrCat(" with ", absl::StatusCodeToString(event.code));
  return absl::StrCat(edge, Describe(event, dump), code, ", ", SinceText(event.time, until));
}

// Returns what a process was doing at `until`: the activity that it began last of those that it had not ended, and
// its last event.
std::string LastOf(const FlightDump& dump, absl::Time until) {
  using Key = std::tuple<FlightActivity, uint32_t, uint64_t, uint32_t, uint32_t>;
  std::map<Key, const FlightEvent*> open;
  const FlightEvent* last = nullptr;
  for (const FlightEvent& event : dump.recorded.events) {
    if (event.time > until) break;
    last = &event;
    const Key key(event.activity, event.peer, event.step, event.tensor, event.slice);
    // A membership and a lease last; they are not what the process is at.
    if (event.activity == FlightActivity::kMember || event.activity == FlightActivity::kLease) continue;
    if (event.edge == FlightEdge::kBegin) {
      open[key] = &event;
    } else {
      open.erase(key);
    }
  }
  if (last == nullptr) return "no event";
  const FlightEvent* newest = nullptr;
  for (const auto& [key, event] : open) {
    if (newest == nullptr || event->time > newest->time) newest = event;
  }
  const std::string ended = Ended(*last, dump, until);
  if (newest == nullptr || newest == last) return ended;
  return absl::StrCat("in ", Describe(*newest, dump), ", begun ", SinceText(newest->time, until), "; ", ended);
}

// Returns the worker's last event as the servers saw it.
std::string LastSeen(absl::Span<const FlightDump> dumps, uint32_t worker, absl::Time until) {
  const FlightDump* where = nullptr;
  const FlightEvent* last = nullptr;
  for (const FlightDump& dump : dumps) {
    if (!absl::StartsWith(dump.process, "server ")) continue;
    for (const FlightEvent& event : dump.recorded.events) {
      if (event.peer != worker || event.activity == FlightActivity::kMissing || event.time > until) continue;
      if (last != nullptr && event.time <= last->time) continue;
      last = &event;
      where = &dump;
    }
  }
  if (last == nullptr) return "it left no dump, and no server has an event of it";
  return absl::StrCat("it left no dump; ", where->process, " recorded that it ", Ended(*last, *where, until));
}

std::string LastOfWorker(absl::Span<const FlightDump> dumps, uint32_t worker, absl::Time until) {
  const std::string name = absl::StrCat("worker ", worker);
  const FlightDump* own = nullptr;
  for (const FlightDump& dump : dumps) {
    if (dump.process == name && (own == nullptr || dump.time > own->time)) own = &dump;
  }
  return own != nullptr ? LastOf(*own, until) : LastSeen(dumps, worker, until);
}

}  // namespace

FlightReport MakeFlightReport(std::vector<FlightDump> dumps) {
  FlightReport report;
  for (const FlightDump& dump : dumps) {
    for (const FlightEvent& event : dump.recorded.events) {
      if (event.activity != FlightActivity::kMissing) continue;
      report.waits.push_back(
          {dump.process, event.peer, event.step, static_cast<double>(event.amount) * 1e-3, event.time, ""});
    }
  }
  std::sort(report.waits.begin(), report.waits.end(),
            [](const FlightReport::Wait& a, const FlightReport::Wait& b) { return a.until > b.until; });
  std::set<std::pair<uint32_t, uint64_t>> seen;
  std::erase_if(report.waits, [&](const FlightReport::Wait& wait) {
    return !seen.insert({wait.worker, wait.step}).second;
  });
  report.waits.resize(std::min(report.waits.size(), kMaxWaits));
  for (FlightReport::Wait& wait : report.waits) wait.last = LastOfWorker(dumps, wait.worker, wait.until);
  for (FlightDump& dump : dumps) {
    std::string last = LastOf(dump, dump.time);
    report.processes.push_back({std::move(dump), std::move(last)});
  }
  std::sort(report.processes.begin(), report.processes.end(),
            [](const FlightReport::Process& a, const FlightReport::Process& b) {
              return std::tie(a.dump.process, a.dump.time) < std::tie(b.dump.process, b.dump.time);
            });
  return report;
}

absl::StatusOr<FlightReport> ReadFlights(const std::string& run_directory) {
  std::vector<FlightDump> dumps;
  std::vector<std::string> unreadable;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(run_directory + "/logs", error)) {
    const std::string name = entry.path().filename().string();
    if (!absl::StartsWith(name, "flight-") || !absl::EndsWith(name, ".jsonl")) continue;
    const absl::StatusOr<std::string> text = ReadFile(entry.path().string());
    absl::StatusOr<FlightDump> dump = text.ok() ? ParseFlightDump(*text) : text.status();
    if (dump.ok()) {
      dumps.push_back(*std::move(dump));
    } else {
      unreadable.push_back(absl::StrCat(entry.path().string(), ": ", dump.status().message()));
    }
  }
  if (dumps.empty() && unreadable.empty()) {
    return absl::NotFoundError(
        absl::StrCat(run_directory,
                     "/logs: no flight-*.jsonl; servers and workers write them when a wait times out, when they fail, "
                     "and at SIGQUIT (kill -QUIT PROCESS)"));
  }
  FlightReport report = MakeFlightReport(std::move(dumps));
  report.unreadable = std::move(unreadable);
  return report;
}

Json ToJson(const FlightReport& report) {
  Json waits = Json::array(), processes = Json::array();
  for (const FlightReport::Wait& wait : report.waits) {
    waits.push_back({{"server", wait.server},
                     {"worker", wait.worker},
                     {"step", wait.step},
                     {"seconds", wait.seconds},
                     {"until", absl::ToUnixMillis(wait.until) * 1e-3},
                     {"last_event", wait.last}});
  }
  for (const FlightReport::Process& process : report.processes) {
    processes.push_back({{"process", process.dump.process},
                         {"pid", process.dump.pid},
                         {"reason", process.dump.reason},
                         {"time", absl::ToUnixMillis(process.dump.time) * 1e-3},
                         {"events", process.dump.recorded.events.size()},
                         {"cut_off", process.dump.cut_off},
                         {"last_event", process.last}});
  }
  return {{"waits", waits}, {"processes", processes}, {"unreadable", report.unreadable}};
}

void Print(const FlightReport& report, std::ostream& out) {
  for (const FlightReport::Wait& wait : report.waits) {
    out << absl::StrFormat("step %d: %s waited %s for worker %d, until %s UTC\n    worker %d: %s\n", wait.step,
                           wait.server, DurationText(wait.seconds), wait.worker, TimeText(wait.until), wait.worker,
                           wait.last);
  }
  if (report.waits.empty()) out << "no wait timed out\n";
  out << "flight dumps:\n";
  for (const FlightReport::Process& process : report.processes) {
    const FlightDump& dump = process.dump;
    out << absl::StrFormat("  %s, process %d, %s UTC, %s events%s: %s\n    %s\n", dump.process, dump.pid,
                           TimeText(dump.time), CountText(static_cast<int64_t>(dump.recorded.events.size())),
                           dump.cut_off ? " (the file was cut off)" : "", dump.reason, process.last);
  }
  for (const std::string& problem : report.unreadable) out << "  cannot read " << problem << "\n";
}

}  // namespace ballast
