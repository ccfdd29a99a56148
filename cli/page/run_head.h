// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ballast/v1/coordinator_service.pb.h"
#include "common/run/summary.h"

namespace ballast {

// Description and state of a job, for the head of the page.
struct RunHead {
  // The directory or the address.
  std::string name;
  std::string job;
  std::string mode;
  // "starting", "gathering", "running", "finished", "interrupted", "failed", "unfinished" or "unreachable".
  std::string state;
  // Why it failed or cannot be reached.
  std::string error;
  // Seconds since 1970: when the run began, and when the rest of this was true.
  double started = 0;
  double updated = 0;
  // Figures come in, or may come.
  bool live = false;
  // Fraction of metrics.jsonl that was read.
  double read = 1;
  int64_t epoch = 0;
  // 0: unknown, or none.
  int64_t epochs = 0;
  int64_t step = 0;
  int64_t examples = 0;
  int64_t total_examples = 0;
  double examples_per_second = 0;
  // The time of training.
  double seconds = 0;
  // Seconds; negative: unknown.
  double time_left = -1;
  int64_t workers_lost = 0;
  int64_t servers_lost = 0;
  // Those whom the job waits for, and why.
  std::vector<std::string> missing;
  // The newest events.
  std::vector<std::string> notices;
  // Pulls that have waited longest, and what each waits for.
  std::vector<std::string> waits;
  // Processes that were asked, and the errors of those that did not answer.
  int64_t processes = 0;
  std::vector<std::string> silent;
};

// Takes over what a job's coordinator says about it.
void UseProgress(const v1::GetProgressResponse& job, RunHead& head);
// Takes over what a run has left at its end.
void UseSummary(const Summary& summary, RunHead& head);

// Returns the head as an object, in one line.
std::string HeadJson(const RunHead& head);

}  // namespace ballast
