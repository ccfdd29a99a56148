// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/client.h"
#include "client/server_wait.h"
#include "common/trace/timeline_recorder.h"
#include "worker/data/row_indexer.h"
#include "worker/model/trainable_model.h"
#include "worker/rows/row_source.h"

namespace ballast {

// Counts and measurements of the rows exchanged since the last TakeStats.
struct RowStats {
  // Time spent waiting for rows.
  absl::Duration waited;
  // Distinct rows of batches that were pulled, and whose gradients were pushed.
  uint64_t pulled = 0;
  uint64_t pushed = 0;
  // Pushes, and the maximum and the sum of the largest staleness in each; see RowsResult.
  uint64_t pushes = 0;
  uint64_t max_staleness = 0;
  uint64_t staleness_sum = 0;
  // Bytes of messages, without the network's own overhead.
  uint64_t bytes_sent = 0;
  uint64_t bytes_received = 0;
};

// Pulls the rows that batches use of a model's tables, and pushes their gradients. The rows of the next batch are
// pulled while the current one is computed, and gradients are pushed while the next one is. A batch's rows are in one
// of three slots from their pull to the end of their push, so two pushes and a pull can be in flight. Knows nothing of
// dense parameters. Thread safety: none; the training loop's thread calls it.
class RowExchange : public RowSource {
 public:
  struct Options {
    // Id of the first table; see TableSpecs.
    uint32_t first_id = 0;
    // See PullsEarly.
    bool pulls_early = false;
    // Once it is true, a wait for servers ends within one second.
    const std::atomic<bool>* interrupted = nullptr;
    // Records waits; may be null. Must outlive the exchange.
    TimelineRecorder* timeline = nullptr;
  };

  // Both must outlive this. Calls still in flight at the end use the memory of this exchange until Client::Shutdown.
  RowExchange(TrainableModel* model, Client* client, const Options& options);

  bool pulls_early() const { return options_.pulls_early; }

  // Begins to pull the rows of a batch that Fetch will want at `step`. `batch` tells batches apart.
  absl::Status Prefetch(uint64_t batch, uint64_t step, absl::Span<const BatchRows> rows);
  // Waits for the rows of a batch, which becomes the current one; pulls them now unless Prefetch has begun to. The
  // result is valid until the next Fetch.
  absl::StatusOr<absl::Span<const RowsView>> Fetch(uint64_t batch, uint64_t step, absl::Span<const BatchRows> rows);
  // Pulls rows for an evaluation, which under policy sync have the updates of the steps before `step`; forgets what
  // Prefetch has begun. The result is valid until the next Fetch.
  absl::StatusOr<absl::Span<const RowsView>> FetchForEvaluation(uint64_t step,
                                                                absl::Span<const BatchRows> rows) override;

  // Begins to push the gradients of the current batch, which the model has just computed.
  absl::Status Push(uint64_t step, uint32_t examples, bool last_of_step, std::optional<double> schedule_position);
  // Begins to push a batch without examples. Others may wait for the end of the step.
  absl::Status PushNothing(uint64_t step, bool last_of_step);

  // Waits for all pushes in flight.
  absl::Status AwaitPushes();

  RowStats TakeStats();

 private:
  // A batch from its pull to the end of its push.
  struct Slot {
    std::optional<uint64_t> batch;
    uint64_t step = 0;
    // Indexed by table. Values and gradients are [rows, dim].
    std::vector<BatchRows> rows;
    std::vector<std::vector<float>> values;
    std::vector<std::vector<float>> gradients;
    std::vector<std::vector<uint32_t>> versions;
    RowClocks clocks;
    std::vector<RowsView> views;
    std::optional<Future<RowsResult>> pull;
    std::optional<Future<RowsResult>> push;
    // Number of the push among all pushes.
    uint64_t push_number = 0;
  };

  // See ServerWait.
  absl::StatusOr<RowsResult> Await(const Future<RowsResult>& future, absl::string_view what);
  absl::Status AwaitPush(Slot& slot);
  // Ends a pull that nobody wants any more.
  absl::Status Drop(Slot& slot);
  // Returns a slot that is neither the current nor the next one, at rest; waits for the oldest push if necessary.
  absl::StatusOr<Slot*> TakeSlot();
  void BeginPull(Slot& slot, uint64_t step, absl::Span<const BatchRows> rows);
  absl::Status EndPull(Slot& slot);

  TrainableModel* const model_;
  Client* const client_;
  const Options options_;
  ServerWait wait_;
  std::array<Slot, 3> slots_;
  Slot* current_ = nullptr;
  // The slot whose pull is in flight ahead of its batch.
  Slot* next_ = nullptr;
  uint64_t pushes_ = 0;
  RowStats stats_;
};

}  // namespace ballast
