// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tests/fault/programs/program.h"
#include "tests/fault/tables/counting_worker.h"
#include "tests/fault/tables/push_log.h"
#include "tests/fault/tables/row_ledger.h"

namespace ballast {

// Owns a worker that is a process of its own, which is killed and has successors, and the ledger of its pushes. The
// killed process's pushes in flight may have been applied or not: its successor's first push keeps late ones out, and
// then the marks of each push tell which servers have applied it, so the ledger is exact. Thread safety: confined to
// the main thread, like Program.
class CountingProcess {
 public:
  struct Options {
    // Path of counting_worker.
    std::string program;
    // Existing directory of the process's own.
    std::string folder;
    CountingJob job;
    uint32_t worker = 0;
    uint64_t seed = 1;
    uint32_t rows = 20000;
    uint32_t servers = 2;
    // Timeout for the first push to be acknowledged.
    absl::Duration timeout = absl::Seconds(30);
  };
  struct Counts {
    uint64_t kills = 0;
    uint64_t pushes = 0;
    // Messages, one per server, of pushes that were not acknowledged before the kill: applied or not.
    uint64_t unknown_applied = 0;
    uint64_t unknown_lost = 0;
  };

  explicit CountingProcess(Options options);

  bool started() const { return program_ != nullptr; }
  // Starts a process after the last one was killed; returns after its first push was acknowledged.
  absl::Status Start();
  // Sends SIGKILL and completes the ledger; the servers must serve. An error if the process had ended by itself.
  absl::Status Kill();

  // Valid while no process is started.
  const RowLedger& ledger() const { return ledger_; }
  const Counts& counts() const { return counts_; }

 private:
  // Each life has two incarnations: the process's, and that of the client that asks for the marks.
  uint64_t IncarnationOf(uint64_t life) const { return 2 * life + 1; }
  std::string LogPath() const { return options_.folder + "/pushes"; }
  PushKey KeyOf(uint64_t number) const { return {options_.worker, life_, number}; }
  absl::Status Settle(const LoggedPushes& pushes);
  // Returns if the rows of the first table exist.
  absl::StatusOr<std::vector<uint8_t>> Present(const std::vector<uint64_t>& ids) const;

  const Options options_;
  const RowDraw draw_;
  std::unique_ptr<Program> program_;
  uint64_t life_ = 0;
  RowLedger ledger_;
  Counts counts_;
};

}  // namespace ballast
