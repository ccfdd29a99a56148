// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/bench_report.h"
#include "cli/command/command.h"

namespace ballast {

// Values of flags that several benchmarks share. INVALID_ARGUMENT names the flag, the value and the accepted values.

// A number from `least` to `most`, possibly with a fraction.
absl::StatusOr<double> GetNumber(const Arguments& arguments, absl::string_view flag, double otherwise, double least,
                                 double most);
// Comma-separated sizes in bytes, each a multiple of 4: "4096,64KiB,16MiB,1GiB".
absl::StatusOr<std::vector<uint64_t>> GetSizes(const Arguments& arguments, absl::string_view flag,
                                               const std::string& otherwise);
// Comma-separated integers from 1 to `most`: "1,2,4".
absl::StatusOr<std::vector<int>> GetCounts(const Arguments& arguments, absl::string_view flag,
                                           const std::string& otherwise, int most);
// Comma-separated names from `all`, returned in the order of `all`; all of them if the flag is not given.
absl::StatusOr<std::vector<std::string>> GetNames(const Arguments& arguments, absl::string_view flag,
                                                  const std::vector<std::string>& all);
// "64 KiB".
std::string FormatSize(uint64_t bytes);

// Returns an error if there are words besides the flags.
absl::Status CheckNoWords(const Arguments& arguments);

// Ends a benchmark's command: prints the conclusion and, if `json`, the JSON object; or prints the error. Returns the
// exit status.
int Conclude(const absl::StatusOr<BenchReport>& report, bool json, std::ostream& out, std::ostream& err);

}  // namespace ballast
