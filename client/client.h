// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "ballast/v1/parameter_service.pb.h"
#include "ballast/v1/table.pb.h"
#include "ballast/v1/tensor.pb.h"
#include "client/client_options.h"
#include "client/future.h"
#include "client/rows/ended_steps.h"
#include "client/rows/row_batch.h"
#include "client/rows/row_report.h"
#include "client/rows/step_counts.h"
#include "client/slice_message.h"
#include "common/tensors/shard_map.h"

namespace ballast {

class CoordinatorLink;
class ErrorFeedback;
class ShardChannel;
class ShardMapFollower;
struct RowRun;
struct ShardMessage;
struct ShardReply;

// Owns the connections to all shards of a job; routes slices and rows to their owners and remembers the versions of
// slices. If a shard moves to another address, messages in flight are sent again there, and still applied once. The
// client retries calls itself, which is safe: a push is applied once. Every future is ready within the options'
// timeouts. Errors name the shard, its address and the call. After INVALID_ARGUMENT the job is unchanged; after any
// other failure of a push, a part of it may have been applied. Calls whose futures are not awaited may be reordered.
// All workers should push-pull tensors in the same order. Thread safety: all methods may be called from any thread.
// Destroying the client cancels all calls. Size: the calls for tensors and those for tables share the map, the channels
// and the operations in flight, and each is short; client_rows.cc has those for tables.
class Client {
 public:
  // Connects to the coordinator or to every shard; blocks. UNAVAILABLE and DEADLINE_EXCEEDED name the address and the
  // time spent. INVALID_ARGUMENT if an option is out of range or an address on another machine lacks TLS;
  // UNAUTHENTICATED or PERMISSION_DENIED if the token is not accepted.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(ClientOptions options);
  ~Client();

  // Places the tensors and creates them on their shards; blocks. Repeating a declaration is OK; a different one is
  // FAILED_PRECONDITION. Tensors that others declared through the coordinator before Connect need no declaration.
  absl::Status Declare(absl::Span<const v1::TensorSpec> specs);

  // The same for tables, which share ids and names with tensors.
  absl::Status DeclareTables(absl::Span<const v1::TableSpec> specs);

  // Sets the initial values of tensors, once per job. Pulls of a tensor whose initializer is Provided wait for it, even
  // at step 0, so one client sets and all others pull. Setting the same values again is OK at any time. Other values,
  // or a tensor that has received a push, are FAILED_PRECONDITION; some of the slices may then have been set.
  Future<SetResult> SetValues(absl::Span<const FirstValues> tensors);

  // Pushes gradients, which are means over `examples` examples, computed after the worker had finished `step` steps.
  // With examples = 0 the worker completes the step without contributing; gradients may then be empty.
  // `schedule_position` is the position in the job's data where the step began, as in PushHeader.
  Future<PushResult> Push(uint64_t step, uint32_t examples, absl::Span<const TensorGradient> gradients,
                          std::optional<double> schedule_position = std::nullopt);

  // Reads values; under policy sync, values that include the update of step - 1; under bounded, the updates of all
  // steps before step - steps_ahead.
  Future<PullResult> Pull(uint64_t step, absl::Span<const TensorValues> values);

  // Pushes at `step` and pulls at `step` + 1 in one round trip. Both lists name the same tensors in the same order.
  Future<PushResult> PushPull(uint64_t step, uint32_t examples, absl::Span<const TensorGradient> gradients,
                              absl::Span<const TensorValues> values,
                              std::optional<double> schedule_position = std::nullopt);

  // Reads rows of tables; under policy sync, rows that include the update of step - 1; under bounded, those of all
  // steps before step - steps_ahead. Creates none. Each distinct row of a table is requested once. INVALID_ARGUMENT,
  // before anything is sent, for a table that is unknown or given twice, or sizes that do not fit it.
  Future<RowsResult> PullRows(absl::Span<const RowPull> tables, uint64_t step = 0);

  // Pushes gradients of rows, which are means over `examples` examples, as Push does those of tensors; a row begins
  // with its first gradient. With examples = 0 no rows are sent. `last_of_step` ends the step at every shard that has
  // tables, with or without rows for it: the worker makes this its step's last push of rows. Earlier
  // pushes of the step must have been called, but need not be ready. INVALID_ARGUMENT as for PullRows.
  Future<RowsResult> PushRows(uint64_t step, uint32_t examples, absl::Span<const RowPush> tables,
                              bool last_of_step = false, std::optional<double> schedule_position = std::nullopt);

  // Reports that this worker stops pushing for now, so that others do not wait for it until its next push; blocks. Call
  // it after the futures of all pushes are ready.
  absl::Status Pause();

  // Counts the rows of a table at all shards, and returns the `top` rows with the most updates, at most 10,000; blocks.
  // INVALID_ARGUMENT for an unknown table.
  absl::StatusOr<RowReport> InspectRows(uint32_t table_id, uint32_t top);

  // Returns each shard's status, by rank; blocks.
  absl::StatusOr<std::vector<v1::GetStatusResponse>> GetStatus();

  ShardMap shard_map() const;

  // Returns the oldest and the newest version of all slices as last pulled; 0 before the first pull.
  std::pair<uint64_t, uint64_t> pulled_versions() const;

  // Returns the number of push messages that each shard, by rank, has acknowledged.
  std::vector<uint64_t> acknowledged_pushes() const;

  // Returns whether large messages to all shards of the tensor go through shared memory now, so that a copier pays.
  bool SharesMemory(uint32_t tensor_id) const;

  // Receives responses in the calling thread, while it has nothing else to do, until `ready`, which they may make true,
  // or `timeout`. A thread that waits for one of this client's calls is faster so: the thread that receives otherwise
  // need not wake and then wake this one. `ready` must depend on this client's calls alone. Returns the time that it
  // spent on responses; nullopt, at once, if it cannot help: responses come neither through shared memory nor on a data
  // stream, or from several shards, or another thread helps already.
  std::optional<absl::Duration> Help(absl::FunctionRef<bool()> ready, absl::Duration timeout);

  // Waits for one of this client's calls, and returns its result. As future.Get(), but receives it in the calling
  // thread if Help can.
  template <typename T>
  absl::StatusOr<T> Await(const Future<T>& future) {
    const auto ready = [&] { return future.Ready(); };
    while (!ready() && Help(ready, kHelpTimeout).has_value()) {
    }
    return future.Get();
  }

  // Ends all calls in flight, and all later ones, with CANCELLED and the reason.
  void Shutdown(const std::string& reason);

  // Blocks until no call uses the caller's memory any more, even if its future was dropped; call it after Shutdown,
  // which cancels calls but does not wait for a response that is being decoded. Must not be called from a callback.
  void WaitUntilIdle();

 private:
  static constexpr absl::Duration kHelpTimeout = absl::Seconds(1);

  struct Operation;
  struct Request;
  // The sums of the replies to an operation's messages.
  struct Totals {
    PushResult slices;
    SetResult set;
    RowsResult rows;
  };
  using Finish = absl::AnyInvocable<void(absl::StatusOr<Totals>)>;
  using Slices = std::vector<SliceTransfer>;
  using Rows = std::vector<RowRun>;
  // A tensor declared by this client or by others.
  struct Tensor {
    PlacedTensor placed;
    // Each slice's version as last pulled, and one more than the step of its last acknowledged push.
    std::vector<uint64_t> versions;
    std::vector<uint64_t> finished_steps;
  };

  explicit Client(ClientOptions options);
  absl::Status Reach();
  // Adds the map's tensors and shards; ignores a map that is older than the last.
  absl::Status UseMap(ShardMap map);
  // Uses a map and moves the channels to its addresses.
  absl::Status FollowMap(ShardMap map);
  absl::StatusOr<ShardMap> Place(absl::Span<const v1::TensorSpec> specs, absl::Span<const v1::TableSpec> tables);
  absl::Status PlaceAndDeclare(absl::Span<const v1::TensorSpec> specs, absl::Span<const v1::TableSpec> tables);
  std::vector<ShardChannel*> channels() const;
  Future<PushResult> PushPullOrPush(const Request& request);
  void Begin(const Request& request, Finish finish);
  // Sends each shard its messages, by rank; calls `finish` after the last of them has ended.
  void SendAll(std::vector<std::vector<ShardMessage>> by_shard, Finish finish);
  absl::StatusOr<std::vector<Slices>> Route(const Request& request) const;
  // Returns the rows of each shard, by rank. `Batch` is RowPull or RowPush.
  template <typename Batch>
  absl::StatusOr<std::vector<Rows>> RouteRows(absl::Span<const Batch> tables, v1::Encoding encoding) const;
  absl::flat_hash_set<uint32_t> ShardsWithTables() const;
  // Counts a message of rows that has ended; true if the shard needs another report.
  bool CountEnded(uint32_t shard, const ShardMessage& message, bool acknowledged);
  // Counts the step's messages of rows, and with its last ones sets how many there are.
  void CountMessages(uint64_t step, absl::Span<const uint32_t> last_to,
                     std::vector<std::vector<ShardMessage>>& by_shard);
  Future<RowsResult> SendRows(std::vector<std::vector<ShardMessage>> by_shard);
  // Reports the versions that this worker has seen to a shard that may have recovered an older state (durability WAL).
  void OnRetry(uint32_t shard);
  void Report(uint32_t shard);
  std::vector<v1::ReportVersionsRequest> DescribeSeen(uint32_t shard) const;
  void OnMessageDone(Operation* operation, uint32_t shard, const ShardMessage& message, ShardReply reply);

  const ClientOptions options_;
  // Null if gradients are sent as fp32. Set by Connect, then constant; the channels use it.
  std::unique_ptr<ErrorFeedback> feedback_;
  // Null if the options name the shards. Set by Connect, then constant.
  std::unique_ptr<CoordinatorLink> coordinator_;
  std::unique_ptr<ShardMapFollower> map_follower_;

  // True if shards may change their addresses.
  const bool follows_;

  mutable absl::Mutex mutex_;
  bool shutdown_ ABSL_GUARDED_BY(mutex_) = false;
  ShardMap map_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint32_t, Tensor> tensors_ ABSL_GUARDED_BY(mutex_);
  // By rank. Only grows, so channels may be used outside the lock.
  std::vector<std::unique_ptr<ShardChannel>> channels_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_operation_ ABSL_GUARDED_BY(mutex_) = 1;
  StepCounts row_messages_ ABSL_GUARDED_BY(mutex_);
  EndedSteps ended_steps_ ABSL_GUARDED_BY(mutex_);
  // Shards that need another report at the end of a step of rows, because they may have lost a part of it.
  absl::flat_hash_set<uint32_t> retried_rows_ ABSL_GUARDED_BY(mutex_);
  // Number of reports in flight per shard, and shards that need another report because of later retries.
  absl::flat_hash_map<uint32_t, uint32_t> reports_in_flight_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_set<uint32_t> reports_due_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ballast
