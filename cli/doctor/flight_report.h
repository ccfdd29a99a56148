// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/flight/flight_dump.h"

namespace ballast {

// Findings from the flight dumps of a run: who waited for whom in vain, and what each process did last.
struct FlightReport {
  // A shard waited for a worker until the wait timed out.
  struct Wait {
    // "server 0".
    std::string server;
    uint32_t worker = 0;
    uint64_t step = 0;
    double seconds = 0;
    absl::Time until;
    // The worker's last event before that, and who recorded it.
    std::string last;
  };
  struct Process {
    FlightDump dump;
    // The activity that it was in, or its last event.
    std::string last;
  };
  // Newest first, each worker and step once.
  std::vector<Wait> waits;
  std::vector<Process> processes;
  // Paths of dumps that cannot be read, and why.
  std::vector<std::string> unreadable;
};

FlightReport MakeFlightReport(std::vector<FlightDump> dumps);

// Reads logs/flight-*.jsonl of a run directory. NOT_FOUND if there is none.
absl::StatusOr<FlightReport> ReadFlights(const std::string& run_directory);

nlohmann::ordered_json ToJson(const FlightReport& report);
void Print(const FlightReport& report, std::ostream& out);

}  // namespace ballast
