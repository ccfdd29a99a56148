// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/metrics/memory_bytes.h"

namespace ballast {

// How often a quantity fell between which bounds: bucket 0 counts zeros, bucket i from 1 the values in [2^(i-1), 2^i).
struct Distribution {
  std::vector<int64_t> buckets;
  double mean = 0;
  int64_t max = 0;
};

// How one run ended: the content of summary.json and of the last line of `ballast launch --json`.
// A field is a key of that object, of the same name; hence their number.
struct Summary {
  std::string job;
  // "sync", "async", "bounded" or "local_sgd"; and the number that belongs to it, absent elsewhere.
  std::string mode;
  std::optional<double> quorum;
  std::optional<double> staleness_bound;
  std::optional<double> local_steps;
  // How gradients and values travelled: "fp32", "int8".
  std::string codec;
  std::string value_codec;
  // What workers were asked to compute in: "fp32", "bf16".
  std::string precision;
  int64_t servers = 0;
  int64_t workers = 0;
  // Finished ones.
  int64_t epochs = 0;
  int64_t steps = 0;
  // Seen in training, by all workers together.
  int64_t examples = 0;
  // Of training, evaluation included, start of the processes not.
  double seconds = 0;
  double samples_per_second = 0;
  // Mean over the last epoch.
  double train_loss = 0;
  // Absent without a test set; accuracy also for a regression. Written as null.
  std::optional<double> test_loss;
  std::optional<double> test_accuracy;
  // As it was last applied.
  double learning_rate = 0;
  // Of the gradients of slices that were applied, in updates; as the servers counted.
  int64_t max_staleness = 0;
  double mean_staleness = 0;
  Distribution staleness;
  // Gradients of slices not used, for they came after their step.
  int64_t dropped = 0;
  // Part of worker 0's time spent waiting for servers and others, 0 to 1.
  double wait_share = 0;
  // Of pulls, for other workers, in microseconds; as the servers counted.
  Distribution wait_microseconds;
  // Gradients to the servers and values from them, of all workers, without headers; and the gradients' part.
  int64_t bytes_sent = 0;
  int64_t bytes_received = 0;
  int64_t gradient_bytes = 0;
  // Of worker 0's messages, headers included.
  double bytes_sent_per_step = 0;
  double bytes_received_per_step = 0;
  // Worker 0's batches not used, for their gradients overflowed; and what the loss was multiplied by at last, absent
  // where it was not.
  int64_t skipped_steps = 0;
  std::optional<double> loss_scale;
  // Of worker 0.
  MemoryBytes memory;
  // Of processes that died, by launch; workers that were lost while the others went on; and examples handed out again
  // for that, so that at most as many were seen twice.
  int64_t restarts = 0;
  int64_t workers_lost = 0;
  int64_t examples_repeated = 0;
  // Messages with gradients that a shard acknowledged and does not have; and that it applied more than once. Absent
  // where shards could not be asked.
  std::optional<double> pushes_lost;
  std::optional<double> pushes_duplicated;
  // The lost ones of each shard, by rank; empty where shards could not be asked.
  std::vector<int64_t> pushes_lost_by_shard;
  std::string run_dir;
  // Ended by a signal before its last epoch.
  bool interrupted = false;
  // What the workers computed on: "cpu" or "cuda".
  std::string device;
  // Of Ballast.
  std::string version;
};

// One line without its newline. Every key is always there.
std::string SummaryToJson(const Summary& summary);

// INVALID_ARGUMENT names the key that is missing or wrong. Unknown keys are ignored, and those that earlier releases
// did not write may be missing.
absl::StatusOr<Summary> SummaryFromJson(absl::string_view json);

// Atomic: a reader sees the old file or the new one.
absl::Status WriteSummary(const std::string& path, const Summary& summary);

// NOT_FOUND where there is no such file.
absl::StatusOr<Summary> ReadSummary(const std::string& path);

}  // namespace ballast
