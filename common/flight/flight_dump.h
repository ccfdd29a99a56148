// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/flight/flight_recorder.h"

namespace ballast {

// A dump of a process's newest events. As a file: a line with the fields besides the events, then a line for each
// event, each a JSON object.
struct FlightDump {
  // "server 0", "worker 3".
  std::string process;
  int64_t pid = 0;
  std::string version;
  // Why the dump was made.
  std::string reason;
  absl::Time time;
  FlightRecorder::Copy recorded;
  // Set by a reader if the file ends in the middle of an event.
  bool cut_off = false;
};

// Returns what this process has recorded until now.
FlightDump TakeFlightDump(const std::string& process, std::string reason);

std::string FlightDumpText(const FlightDump& dump);

// Reads a dump. INVALID_ARGUMENT names the line that is none of a dump; a last line that was cut off is left out.
absl::StatusOr<FlightDump> ParseFlightDump(absl::string_view text);

// Writes dumps of this process's recorder to `directory`/flight-PROCESS-PID.jsonl, where PROCESS is like "server-0"; a
// later dump replaces an earlier one. Empty `directory`: writes nothing. Of several, the newest gets the requests.
// Thread safety: all methods may be called from any thread.
class FlightDumper {
 public:
  FlightDumper(std::string directory, std::string process);
  // Writes the dump that was requested last.
  ~FlightDumper();
  FlightDumper(const FlightDumper&) = delete;

  // Requests a dump from the dumper of this process, if there is one. Does not wait for the disk.
  static void Request(std::string reason);

 private:
  void WriteRequested();
  void Write(const std::string& reason) const;

  const std::string directory_;
  const std::string process_;
  absl::Mutex mutex_;
  std::string reason_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread writer_;
};

// Returns what SIGQUIT does for a SignalWatch: requests a dump, if there is a directory for it.
std::function<void()> DumpAtQuit(const std::string& directory);

}  // namespace ballast
