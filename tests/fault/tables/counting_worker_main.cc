// SPDX-License-Identifier: Apache-2.0
// A worker of the counting tables that is a process, so that it can be killed.
#include <cstdlib>
#include <iostream>
#include <string>

#include "absl/flags/flag.h"
#include "absl/strings/str_split.h"
#include "common/program/env_flags.h"
#include "tests/fault/tables/counting_worker.h"
#include "tests/fault/tables/push_log.h"

ABSL_FLAG(std::string, servers, "", "Addresses of the shards by rank, separated by commas.");
ABSL_FLAG(std::string, coordinator, "", "HOST:PORT of the coordinator, instead of --servers.");
ABSL_FLAG(std::string, durability, "WAL", "The job's durability: NONE, WAL, WAL_SYNC or STANDBY.");
ABSL_FLAG(uint32_t, workers, 1, "Number of workers of the job.");
ABSL_FLAG(uint32_t, worker, 0, "Rank of this worker.");
ABSL_FLAG(uint64_t, incarnation, 1, "Incarnation of this worker.");
ABSL_FLAG(uint64_t, life, 0, "Number of processes that were this worker before.");
ABSL_FLAG(uint64_t, seed, 1, "Seed of the rows that pushes use.");
ABSL_FLAG(uint32_t, rows, 20000, "Rows of each table.");
ABSL_FLAG(uint32_t, shards, 2, "Number of shards.");
ABSL_FLAG(std::string, log, "", "File for the numbers of the pushes that were begun and acknowledged.");

namespace ballast {
namespace {

constexpr char kUsage[] = "counting_worker: pushes rows until it is killed, and logs its pushes, for tests.";

int Fail(const absl::Status& status) {
  std::cerr << "error: " << status.message() << std::endl;
  return 2;
}

// Says so once the first push is acknowledged.
class SpeakingLog : public PushObserver {
 public:
  explicit SpeakingLog(PushLog* log) : log_(log) {}
  absl::StatusOr<bool> Begin(uint64_t number) override { return log_->Begin(number); }
  absl::Status Acknowledge(uint64_t number, const RowUses& uses, const RowsResult& result) override {
    if (number == 0) std::cerr << "counting_worker: counts" << std::endl;
    return log_->Acknowledge(number, uses, result);
  }

 private:
  PushLog* const log_;
};

int Count() {
  CountingJob job;
  job.servers = absl::StrSplit(absl::GetFlag(FLAGS_servers), ',', absl::SkipEmpty());
  job.coordinator = absl::GetFlag(FLAGS_coordinator);
  if (!v1::Durability::Mode_Parse(absl::GetFlag(FLAGS_durability), &job.durability)) {
    return Fail(absl::InvalidArgumentError("--durability: want NONE, WAL, WAL_SYNC or STANDBY"));
  }
  job.workers = absl::GetFlag(FLAGS_workers);
  CountingWorkerOptions options;
  options.client = ClientOf(job);
  options.client.worker = absl::GetFlag(FLAGS_worker);
  options.client.incarnation = absl::GetFlag(FLAGS_incarnation);
  options.seed = absl::GetFlag(FLAGS_seed);
  options.rows = absl::GetFlag(FLAGS_rows);
  options.servers = absl::GetFlag(FLAGS_shards);
  options.life = absl::GetFlag(FLAGS_life);
  options.marks = true;
  auto log = PushLog::Create(absl::GetFlag(FLAGS_log));
  if (!log.ok()) return Fail(log.status());
  auto worker = CountingWorker::Connect(std::move(options));
  if (!worker.ok()) return Fail(worker.status());
  SpeakingLog observer(log->get());
  return Fail((*worker)->Run(observer));
}

}  // namespace
}  // namespace ballast

int main(int argc, char** argv) {
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  const absl::Status parsed = ballast::ParseFlags(argc, argv, ballast::kUsage,
                                                  {"servers", "coordinator", "durability", "workers", "worker",
                                                   "incarnation", "life", "seed", "rows", "shards", "log"});
  if (!parsed.ok()) return ballast::Fail(parsed);
  return ballast::Count();
}
