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
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "ballast/internal/v1/standby_service.grpc.pb.h"
#include "ballast/v1/coordinator_service.pb.h"
#include "server/replication/change_queue.h"
#include "server/replication/transfer_progress.h"
#include "server/shard/parameter_shard.h"
#include "server/shard/shard_journal.h"

namespace ballast {

// A slice that is to be sent.
struct OwnedSlice {
  SliceKey key;
  uint64_t elements = 0;
};

// A server's side of the stream to its standby: sends the shard slice by slice, and each change to slices that were
// sent. A change is durable once the standby has made it, too. Without a standby changes are durable at once, and so
// they are while one catches up, but for answers that are held back because the link cannot keep up.
// Invariant: from the report that a standby is in step until the coordinator has heard that it is lost, nothing is
// durable that the standby has not answered. So whoever may take over has all that was acknowledged.
// Thread safety: all methods may be called from any thread.
class StandbyJournal : public ShardJournal {
 public:
  struct Options {
    uint32_t shard = 0;
    // Of changes that wait to be sent; more are refused with RESOURCE_EXHAUSTED.
    uint64_t max_queued_bytes = uint64_t{256} << 20;
    // While a standby catches up, an answer is held back until no more is queued before its change than the link
    // carries in half a second, within these bounds.
    uint64_t least_pace_bytes = uint64_t{1} << 20;
    uint64_t most_pace_bytes = uint64_t{16} << 20;
    // A standby that takes in nothing of what was sent to it for this long is lost; looked at with each report.
    absl::Duration patience = absl::Seconds(5);
    // The way to a standby.
    std::function<absl::StatusOr<std::shared_ptr<grpc::Channel>>(const std::string& address)> open;
    // There is something new to report.
    std::function<void()> on_news = [] {};
    // Takes a line for the server's log: how a transfer goes, and why it ended.
    std::function<void(const std::string&)> log = [](const std::string&) {};
  };

  // `shard` outlives it, and calls it from StartJournal or a declaration on.
  StandbyJournal(Options options, ParameterShard* shard);
  ~StandbyJournal() override;

  // The shard has a job, which it had before it had this journal or which its first change declares; and this process
  // is its server, of that incarnation. Standbys are fed once both is so.
  void BeginJob();
  void BeginServing(uint64_t server);

  // Whom to feed, as the coordinator has answered; incarnation 0: nobody, and nobody may take over.
  void Feed(const v1::StandbyTarget& target);

  // How the standby follows, to be said to the coordinator; and that it has heard that.
  v1::StandbyReport Report();
  void OnHeartbeat(const v1::StandbyReport& report);

  // This server does not count any more: what waits ends with `reason`, and what comes.
  void Close(absl::Status reason);

  absl::StatusOr<uint64_t> Append(const internal::v1::ShardRecord& record, absl::Span<const absl::string_view> behind,
                                  absl::FunctionRef<bool()> admit, absl::FunctionRef<void()> in_order) override;
  void AwaitDurable(uint64_t position, std::function<void(absl::Status)> done) override;
  void AwaitSynced(uint64_t position, std::function<void(absl::Status)> done) override {
    AwaitDurable(position, std::move(done));
  }

 private:
  enum class Stage {
    // Nobody is fed.
    kNone,
    kCatchingUp,
    // Changes wait for its answers; those before are still on their way.
    kClosingUp,
    kInStep,
    // The stream has ended, and the coordinator may not know yet.
    kLost,
  };
  using Waits = std::vector<std::function<void(absl::Status)>>;
  using Stream = grpc::ClientReaderWriter<internal::v1::ReplicateRequest, internal::v1::ReplicateResponse>;

  void FeedUntilStopped();
  // Until the stream ends.
  void FeedOne(const v1::StandbyTarget& target);
  // From a hello to the stream's end.
  void FeedStream(const v1::StandbyTarget& target, Stream& stream);
  bool Send(Stream& stream, const internal::v1::ReplicateRequest& part);
  // The slices as they are now, then as many bytes of changes as those took.
  bool SendSlices(Stream& stream, absl::Span<const OwnedSlice> slices);
  bool SendChanges(Stream& stream, uint64_t bytes);
  bool SendChangesUpTo(Stream& stream, uint64_t position);
  bool SendChange(Stream& stream, const ChangeQueue::Change& change);
  // All changes, and the end of the transfer behind those that came before it.
  void Follow(Stream& stream, uint64_t end_position, const internal::v1::TransferEnd& end);
  // The next change, if one comes in that time.
  std::optional<ChangeQueue::Change> NextChange(absl::Duration wait);
  void OnAnswer(const internal::v1::ReplicateResponse& answer);
  bool FedLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return stage_ == Stage::kCatchingUp || stage_ == Stage::kClosingUp || stage_ == Stage::kInStep;
  }
  bool WaitsLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return stage_ == Stage::kClosingUp || stage_ == Stage::kInStep || (stage_ == Stage::kLost && reported_);
  }
  // From now on nobody may take over: answers the waits, which are over.
  Waits LetGoLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Waits TakeWaitsLocked(uint64_t position) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of a push's gradients, which travel: those of slices that were sent. Empty: all.
  std::vector<bool> WantedLocked(const internal::v1::ShardRecord& record) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void StopFeedingLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  ParameterShard* const shard_;
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);
  bool has_job_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t server_ ABSL_GUARDED_BY(mutex_) = 0;
  // The next one to feed, and the one that is or was fed last.
  v1::StandbyTarget next_target_ ABSL_GUARDED_BY(mutex_);
  uint64_t standby_ ABSL_GUARDED_BY(mutex_) = 0;
  Stage stage_ ABSL_GUARDED_BY(mutex_) = Stage::kNone;
  // That it is in step was said, or is being said.
  bool reported_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t position_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t answered_ ABSL_GUARDED_BY(mutex_) = 0;
  // In step once it has answered that.
  uint64_t mark_ ABSL_GUARDED_BY(mutex_) = 0;
  // The slices that were sent, until all were; and whether tensors were declared that nobody has looked for yet.
  bool transferring_ ABSL_GUARDED_BY(mutex_) = false;
  bool declared_ ABSL_GUARDED_BY(mutex_) = false;
  absl::flat_hash_set<SliceKey> sent_ ABSL_GUARDED_BY(mutex_);
  ChangeQueue queue_ ABSL_GUARDED_BY(mutex_);
  TransferProgress progress_ ABSL_GUARDED_BY(mutex_);
  // Why the last standby was lost.
  std::string reason_ ABSL_GUARDED_BY(mutex_);
  std::multimap<uint64_t, std::function<void(absl::Status)>> waits_ ABSL_GUARDED_BY(mutex_);
  // Of the stream, while there is one.
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace ballast
