// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ballast/v1/job.pb.h"
#include "common/run/summary.h"

namespace ballast {

// kUnfinished: no launch wrote the directory, and there is no summary: its worker runs, was killed or failed.
enum class RunState { kRunning, kFinished, kInterrupted, kFailed, kUnfinished };

std::string StateName(RunState state);

// One run, as far as the files of its directory tell.
struct RunInfo {
  std::string directory;
  RunState state = RunState::kUnfinished;
  // Why it failed.
  std::string error;
  absl::Time started;
  // Contents of summary.json, or what metrics.jsonl tells so far; the job's name and mode are always set.
  Summary summary;
  // Text for people, such as "bounded, staleness 4".
  std::string mode;
  // Absent if job.textproto is missing or this release cannot read it.
  std::optional<v1::Job> job;
};

// The parent of the run directories that no flag names.
inline constexpr char kRuns[] = "runs";
// In a directory of a sweep: its result, and the mark that the directory holds runs.
inline constexpr char kSweepFile[] = "sweep.json";

// Returns whether a directory has any of a run's files.
bool HoldsRun(const std::string& directory);

// NOT_FOUND if the directory holds no run, INVALID_ARGUMENT if a file is damaged; both name the path.
absl::StatusOr<RunInfo> ReadRun(const std::string& directory);

struct RunList {
  // Newest first.
  std::vector<RunInfo> runs;
  // A directory that was skipped, and why.
  struct Skipped {
    std::string directory;
    std::string reason;
  };
  std::vector<Skipped> skipped;
};

// Lists the runs in a directory, including those of its sweeps; or the directory itself if it holds a run. NOT_FOUND if
// it does not exist.
absl::StatusOr<RunList> ListRuns(const std::string& directory);

// Returns whether a's result is better than b's: a higher test AUC, otherwise a higher test accuracy (of equal ones,
// the one with the lower test loss), otherwise a lower test loss, otherwise a lower train loss. Runs without a result
// come last, failed ones after them. A strict weak order.
bool IsBetter(const RunInfo& a, const RunInfo& b);

// Returns text such as "AUC 0.7843", "accuracy 0.8974" or "loss 0.1854"; "-" without a test.
std::string TestText(const RunInfo& run);
// Returns ": " and the beginning of the error, for the end of a line; empty if the run did not fail.
std::string ErrorText(const RunInfo& run);
// Returns the finished epochs of all: "3/12"; "3" if the data is a stream, which has no last one.
std::string EpochsText(const RunInfo& run);

// Returns the run as an object of `ballast runs --json`.
nlohmann::ordered_json RunToJson(const RunInfo& run);

// Returns lines with aligned columns; the first row holds the headings.
std::string TextTable(const std::vector<std::vector<std::string>>& rows);

}  // namespace ballast
