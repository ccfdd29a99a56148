// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "ballast/internal/v1/standby_service.pb.h"
#include "ballast/v1/coordinator_service.pb.h"
#include "server/replication/change_queue.h"
#include "server/replication/replication_state.h"
#include "server/replication/shard_stream.h"
#include "server/replication/transfer_progress.h"
#include "server/shard/parameter_shard.h"
#include "server/shard/shard_record.h"

namespace ballast {

// Owns a server's side of the stream to its standby: sends the shard slice by slice and some ranges of a table at a
// time, and each change to what was sent. A change is durable once the standby has applied it too. Without a standby,
// or while one catches up, changes are durable at once, except that responses are held back while the link cannot keep
// up. Invariant: from the report that a standby is in step until the coordinator knows that it is lost, nothing is
// durable that the standby has not acknowledged, so a standby that takes over has every acknowledged change.
// Deliberately decides none of this: it performs what ReplicationState returns. Thread safety: all methods may be
// called from any thread.
class StandbyJournal : public ShardJournal {
 public:
  struct Options {
    uint32_t shard = 0;
    // Limit on the bytes of queued changes. RESOURCE_EXHAUSTED above it.
    uint64_t max_queued_bytes = uint64_t{256} << 20;
    // While a standby catches up, a response is held back until the bytes queued before its change are what the link
    // carries in half a second, within these limits.
    uint64_t least_pace_bytes = uint64_t{1} << 20;
    uint64_t most_pace_bytes = uint64_t{16} << 20;
    // A standby that processes none of the sent data for this long is lost; checked with each report.
    absl::Duration timeout = absl::Seconds(5);
    // Opens a stream to a standby.
    std::function<absl::StatusOr<std::unique_ptr<StandbyStream>>(const std::string& address)> open;
    // Called when there is something new to report.
    std::function<void()> on_news = [] {};
    // Receives a line for the server's log: a transfer's progress, and why it ended.
    std::function<void(const std::string&)> log = [](const std::string&) {};
  };

  // `shard` must outlive this, and calls it from StartJournal or its first declaration on.
  StandbyJournal(Options options, ParameterShard* shard);
  ~StandbyJournal() override;

  // BeginJob: the shard already has a job; otherwise the first change declares it. BeginServing: this process is the
  // shard's server, with that incarnation. Standbys follow once both hold.
  void BeginJob();
  void BeginServing(uint64_t server);

  // Sets the standby from the coordinator's response; incarnation 0: there is none, and none may take over.
  void Feed(const v1::StandbyTarget& target);

  // Report returns the standby's state for the coordinator; OnHeartbeat confirms that the coordinator received it.
  v1::StandbyReport Report();
  void OnHeartbeat(const v1::StandbyReport& report);

  // Ends all current and later waits with `reason`, because this process no longer serves the shard.
  void Close(absl::Status reason);

  absl::StatusOr<uint64_t> Append(const internal::v1::ShardRecord& record, absl::Span<const absl::string_view> behind,
                                  absl::FunctionRef<bool()> admit, absl::FunctionRef<void()> in_order) override;
  void AwaitDurable(uint64_t position, std::function<void(absl::Status)> done) override;
  void AwaitSynced(uint64_t position, std::function<void(absl::Status)> done) override {
    AwaitDurable(position, std::move(done));
  }
  std::optional<LogStatus> log() const override { return std::nullopt; }

 private:
  using Waits = std::vector<std::function<void(absl::Status)>>;

  // Lets `event` change the state under the lock, and performs the actions that it returns.
  void Handle(absl::FunctionRef<ReplicationState::Actions(ReplicationState&)> event) ABSL_LOCKS_EXCLUDED(mutex_);
  void FeedUntilStopped();
  // Returns when the stream ends.
  void FeedOne(const v1::StandbyTarget& target);
  // Sends everything from the hello to the end of the stream.
  void FeedStream(const v1::StandbyTarget& target, StandbyStream& stream);
  bool Send(StandbyStream& stream, const internal::v1::ReplicateRequest& part);
  // Sends the slices' current state, then as many bytes of changes as those took.
  bool SendSlices(StandbyStream& stream, absl::Span<const OwnedSlice> slices);
  // Likewise the tables' rows.
  bool SendTables(StandbyStream& stream, absl::Span<const OwnedTable> tables);
  bool SendTable(StandbyStream& stream, const OwnedTable& table);
  bool SendChanges(StandbyStream& stream, uint64_t bytes);
  bool SendChangesUpTo(StandbyStream& stream, uint64_t position);
  bool SendChange(StandbyStream& stream, const ChangeQueue::Change& change);
  // Sends changes until the stream ends, and the end of the transfer after the changes that came before it.
  void Follow(StandbyStream& stream, uint64_t end_position, const internal::v1::TransferEnd& end);
  // Returns the next change, if one arrives within `wait`.
  std::optional<ChangeQueue::Change> NextChange(absl::Duration wait);
  void OnResponse(const internal::v1::ReplicateResponse& response);
  // True while the current stream is to carry changes.
  bool FollowsLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !ended_ && !stopping_ && state_.fed(); }

  const Options options_;
  ParameterShard* const shard_;
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  ReplicationState state_ ABSL_GUARDED_BY(mutex_);
  SentSlices sent_ ABSL_GUARDED_BY(mutex_);
  ChangeQueue queue_ ABSL_GUARDED_BY(mutex_);
  TransferProgress progress_ ABSL_GUARDED_BY(mutex_);
  std::multimap<uint64_t, std::function<void(absl::Status)>> waits_ ABSL_GUARDED_BY(mutex_);
  // The current stream, or null; and whether it has ended.
  StandbyStream* stream_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace ballast
