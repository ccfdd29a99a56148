// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/client.h"
#include "tests/fault/tables/row_ledger.h"
#include "tests/fault/tables/row_uses.h"

namespace ballast {

// Records the pushes of a worker, which calls it on its own thread.
class PushObserver {
 public:
  virtual ~PushObserver() = default;
  // Called before push `number` is sent; false ends the work.
  virtual absl::StatusOr<bool> Begin(uint64_t number) = 0;
  virtual absl::Status Acknowledge(uint64_t number, const RowUses& uses, const RowsResult& result) = 0;
};

// The job that counts.
struct CountingJob {
  // Addresses by rank, or the coordinator's.
  std::vector<std::string> servers;
  std::string coordinator;
  v1::Durability::Mode durability = v1::Durability::NONE;
  // Policy sync, deterministic; otherwise async.
  bool sync = false;
  uint32_t workers = 1;
};

// Options of a client that outlasts every fault.
ClientOptions ClientOf(const CountingJob& job);

struct CountingWorkerOptions {
  // The job, the servers, the worker and all timeouts.
  ClientOptions client;
  uint64_t seed = 1;
  uint32_t rows = 20000;
  // Number of shards.
  uint32_t servers = 2;
  // Number of processes that were this worker before.
  uint64_t life = 0;
  // Pushes in flight, if the policy is async.
  uint32_t in_flight = 4;
  // Adds to each push the marks that tell later which servers have applied it.
  bool marks = false;
};

// Owns a client that pushes the uses of RowDraw to the counting tables. Each use adds 1 to its row: with async a
// gradient of -1; with sync a gradient that is -1 in the mean over the examples of all workers. Pushes have numbers
// from 0 on, also across calls of Run. Does not know which faults happen meanwhile; the client's retry_timeout must be
// longer than any. Thread safety: none.
class CountingWorker {
 public:
  // Connects and declares the tables.
  static absl::StatusOr<std::unique_ptr<CountingWorker>> Connect(CountingWorkerOptions options);
  ~CountingWorker();

  // Pushes until the observer ends the work and all pushes are acknowledged. Returns the first error of a push, the
  // observer, or a pull.
  absl::Status Run(PushObserver& observer);

  // Policy sync: the rows pulled after each step, compared with the uses of all workers so far.
  const LedgerReport& pulled() const { return pulled_; }
  // Policy sync: uses of all workers in the steps that are over.
  const RowLedger& steps() const { return steps_; }

 private:
  struct Flight;

  explicit CountingWorker(CountingWorkerOptions options);
  PushKey KeyOf(uint64_t number) const;
  absl::Status RunFreely(PushObserver& observer);
  absl::Status RunInStep(PushObserver& observer);
  // Sets the uses and the gradients of push `number`.
  void Fill(uint64_t number, float gradient, Flight& flight) const;
  absl::Status Pull(uint64_t step, Flight& flight);
  absl::Status Finish(Flight& flight, PushObserver& observer);
  // Compares the rows of a step's own pull with all workers' uses.
  absl::Status CheckStep(Flight& flight);

  const CountingWorkerOptions options_;
  const RowDraw draw_;
  // Memory of the client's calls, which ends before it.
  std::vector<std::unique_ptr<Flight>> flights_;
  std::unique_ptr<Client> client_;
  uint64_t next_ = 0;
  RowLedger steps_;
  LedgerReport pulled_;
};

}  // namespace ballast
