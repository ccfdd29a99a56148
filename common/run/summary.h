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

// Distribution of a quantity: bucket 0 counts zeros; bucket i, from 1, counts the values in [2^(i-1), 2^i).
struct Distribution {
  std::vector<int64_t> buckets;
  double mean = 0;
  int64_t max = 0;
};

// Result of one run: the content of summary.json and of the last line of `ballast launch --json`. Size: each
// field is a key of that object with the same name.
struct Summary {
  std::string job;
  // "sync", "async", "bounded" or "local_sgd", and the number that belongs to it; nullopt for other modes.
  std::string mode;
  std::optional<double> quorum;
  std::optional<double> steps_ahead;
  std::optional<double> local_steps;
  // Encodings of gradients and of values: "fp32", "int8".
  std::string codec;
  std::string value_codec;
  // Requested precision of the workers' computation: "fp32", "bf16".
  std::string precision;
  int64_t servers = 0;
  int64_t workers = 0;
  // Finished epochs.
  int64_t epochs = 0;
  // Steps of the furthest worker.
  int64_t steps = 0;
  // Seen in training, by all workers together.
  int64_t examples = 0;
  // Training time including evaluation, without the start of the processes.
  double seconds = 0;
  // `examples` per `seconds`.
  double samples_per_second = 0;
  // Mean over the examples of the newest epoch, which are `train_loss_examples`.
  double train_loss = 0;
  int64_t train_loss_epoch = 0;
  int64_t train_loss_examples = 0;
  // nullopt without a test set; accuracy also for a regression. Written as null.
  std::optional<double> test_loss;
  std::optional<double> test_accuracy;
  // Area under the ROC curve of the test set, if the model predicts one of two labels; and the area of the
  // probabilities from which planted labels were drawn, which no model exceeds except by chance. Written as null if not
  // known, like the fields below.
  std::optional<double> test_auc;
  std::optional<double> bayes_auc;
  // With test_auc: test_loss under its usual name, and the sum of the predicted probabilities divided by the number of
  // labels 1; nullopt without such labels.
  std::optional<double> log_loss;
  std::optional<double> calibration;
  // Rows of all tables at the end, as counted by the servers; nullopt for a job without tables.
  std::optional<int64_t> rows;
  // Bytes of these tables in the servers' memory: rows, indexes and counts of uses.
  std::optional<int64_t> table_bytes;
  // The last learning rate applied.
  double learning_rate = 0;
  // In updates, over the pushes of all workers; the staleness of a push is the largest of its slices.
  int64_t max_staleness = 0;
  double mean_staleness = 0;
  // Staleness of the applied slice gradients, as counted by the servers.
  Distribution staleness;
  // Slice gradients dropped because they arrived after their step.
  int64_t dropped = 0;
  // Fraction of the workers' time that they spent waiting for servers: for transfers, updates and other workers; 0
  // to 1.
  double wait_share = 0;
  // Time for which the servers held back pulls until other workers had pushed, in microseconds, as counted by the
  // servers.
  Distribution wait_microseconds;
  // Seconds that pulls of others waited for each worker's pushes, by rank; shorter than the number of workers if the
  // last ones caused no wait. See ballast.v1.JobProgress.caused_waits.
  std::vector<double> caused_wait_seconds;
  // Seconds at the end of the run that both distributions cover: servers count from their last start. 0: unknown.
  double server_seconds = 0;
  // Bytes of the workers' messages: gradients sent to the servers, and values received. gradient_bytes is the part of
  // bytes_sent that holds gradients: all of it.
  int64_t bytes_sent = 0;
  int64_t bytes_received = 0;
  int64_t gradient_bytes = 0;
  // The same per step of a worker: the mean over the steps of all workers.
  double bytes_sent_per_step = 0;
  double bytes_received_per_step = 0;
  // Batches that were skipped because their gradients overflowed, and the last factor by which worker 0 scaled the
  // loss; nullopt if it was not scaled.
  int64_t skipped_steps = 0;
  std::optional<double> loss_scale;
  // Memory of worker 0, and the most that each of its GPUs held at once since it was opened; empty without GPUs.
  MemoryBytes memory;
  std::vector<int64_t> gpu_peak_bytes;
  // Processes that launch restarted after they died; workers that were lost while the others continued; and examples
  // handed out again because of that, which limits the number of examples seen twice.
  int64_t restarts = 0;
  int64_t workers_lost = 0;
  int64_t examples_repeated = 0;
  // Gradient messages that a shard acknowledged but does not have, and those that it applied more than once. nullopt
  // if the shards could not be asked.
  std::optional<double> pushes_lost;
  std::optional<double> pushes_duplicated;
  // Lost pushes of each shard, by rank; empty if the shards could not be asked.
  std::vector<int64_t> pushes_lost_by_shard;
  std::string run_dir;
  // The epoch whose weights and test results are kept, because they were the best; nullopt without Training.keep_best.
  std::optional<double> best_epoch;
  // True if Training.early_stopping ended the run before its last epoch.
  bool stopped_early = false;
  // True if a signal ended the run before its last epoch.
  bool interrupted = false;
  // Device of the workers: "cpu" or "cuda".
  std::string device;
  // Version of Ballast.
  std::string version;
};

// Returns one line without a newline, with every key.
std::string SummaryToJson(const Summary& summary);

// INVALID_ARGUMENT names a missing or wrong key. Unknown keys are ignored, and keys that earlier releases did not
// write may be missing.
absl::StatusOr<Summary> SummaryFromJson(absl::string_view json);

// Atomic: a reader sees the old file or the new one.
absl::Status WriteSummary(const std::string& path, const Summary& summary);

// NOT_FOUND if the file does not exist.
absl::StatusOr<Summary> ReadSummary(const std::string& path);

}  // namespace ballast
