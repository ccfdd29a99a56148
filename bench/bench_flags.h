// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/bench_report.h"
#include "cli/command/arguments.h"

namespace ballast {

// The values of flags that several benchmarks take. INVALID_ARGUMENT names flag, got and want.

// A number from `least` to `most`, with or without a point.
absl::StatusOr<double> GetNumber(const Arguments& arguments, absl::string_view flag, double otherwise, double least,
                                 double most);
// Sizes in bytes that are a multiple of 4, between commas: "4096,64KiB,16MiB,1GiB".
absl::StatusOr<std::vector<uint64_t>> GetSizes(const Arguments& arguments, absl::string_view flag,
                                               const std::string& otherwise);
// Whole numbers from 1 to `most` between commas: "1,2,4".
absl::StatusOr<std::vector<int>> GetCounts(const Arguments& arguments, absl::string_view flag,
                                           const std::string& otherwise, int most);
// Some of `all`, between commas, in the order of `all`; all where the flag is not given.
absl::StatusOr<std::vector<std::string>> GetNames(const Arguments& arguments, absl::string_view flag,
                                                  const std::vector<std::string>& all);
// "64 KiB".
std::string FormatSize(uint64_t bytes);

// No word may stand beside the flags.
absl::Status CheckNoWords(const Arguments& arguments);

// What every benchmark's command ends with: the conclusion and, where asked for, the JSON object; or the failure.
// Answers the exit status.
int Conclude(const absl::StatusOr<BenchReport>& report, bool json, std::ostream& out, std::ostream& err);

}  // namespace ballast
