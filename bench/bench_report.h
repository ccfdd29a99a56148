// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/command/command.h"
#include "common/program/arguments.h"
#include "nlohmann/json.hpp"

namespace ballast {

using Json = nlohmann::ordered_json;

// Our result divided by a limit's or a peer's from the same run, with its target.
struct Ratio {
  // Name in JSON: "push_to_tcp_16mib_up".
  std::string name;
  double value = 0;
  double wanted = 0;
  // True if smaller is better, otherwise larger is better.
  bool at_most = false;
  // Description for people: "push at 16 MiB and above, relative to a bare TCP stream".
  std::string what;

  bool reached() const { return at_most ? value <= wanted : value >= wanted; }
};

// The results of a benchmark, for people and for programs. Does not know what was measured. Thread safety: immutable.
struct BenchReport {
  // "transfer".
  std::string benchmark;
  // The options of the run.
  Json settings = Json::object();
  // One object for each line of the table.
  Json rows = Json::array();
  std::vector<Ratio> ratios;
  // Facts that a reader needs to interpret the results, such as a missing peer.
  std::vector<std::string> notes;

  // Prints the machine, the ratios and the notes.
  void PrintConclusion(std::ostream& out) const;
  // The whole report in one line.
  std::string ToJson() const;
};

// Returns 0 for no figures.
double Median(std::vector<double> figures);
// The smallest figure that at least `share` (0 to 1) of the figures do not exceed; 0 for no figures.
double Percentile(std::vector<double> figures, double share);

// --- the flags and the end of a benchmark's command ---

// Values of flags that several benchmarks share. INVALID_ARGUMENT names the flag, the value and the accepted values.

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

// Ends a benchmark's command: prints the conclusion and, if `json`, the JSON object; or prints the error. Returns the
// result.
CommandResult Conclude(const absl::StatusOr<BenchReport>& report, bool json, std::ostream& out, std::ostream& err);

// Runs a benchmark's command: prints its help, or passes its flags to `parse`, which returns the run or names a bad
// flag; then ends it like Conclude. --json needs no entry in `flags`.
using BenchRun = std::function<absl::StatusOr<BenchReport>()>;
CommandResult RunBenchmark(absl::string_view usage, std::vector<FlagSpec> flags, absl::Span<const std::string> args,
                           const std::function<absl::StatusOr<BenchRun>(const Arguments&)>& parse, std::ostream& out,
                           std::ostream& err);
// Returns the first error, or `run`.
absl::StatusOr<BenchRun> RunUnless(std::initializer_list<absl::Status> errors, BenchRun run);

// --- the commands of `ballast bench`, one per file; each returns the exit status ---

// `transfer`: moves tensors of several sizes to and from real servers, in turn with a bare TCP stream, the plain
// generated stub and an empty call.
CommandResult TransferCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err);
// `apply`: measures the optimizers' kernels against a loop that only reads and writes the same arrays.
CommandResult ApplyCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err);
// `step`: measures samples per second of real training, alongside PyTorch.
CommandResult StepCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err);
// `scaling`: measures how close N workers come to N times one worker's speed, in each mode.
CommandResult ScalingCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err);
// `rows`: measures rows of sparse tables, in process and through real servers, in turn with a limit and with peers.
CommandResult RowsCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err);
// `serve`: measures the time from a push to a prediction with it.
CommandResult ServeBenchCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err);
// `straggler`: measures how much one slow worker slows the others, in each mode.
CommandResult StragglerCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err);

}  // namespace ballast
