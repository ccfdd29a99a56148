// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "ballast/internal/v1/standby_service.grpc.pb.h"
#include "ballast/v1/coordinator_service.pb.h"
#include "server/parameter_shard.h"
#include "server/shard_journal.h"

namespace ballast {

// A server's side of the stream to its standby: sends the shard as it is, then each change. A change is durable once
// the standby has made it, too. Without a standby, and until one has caught up, changes are durable at once.
// Invariant: from the report that a standby is in step until the coordinator has heard that it is lost, nothing is
// durable that the standby has not answered. So whoever may take over has all that was acknowledged.
// Thread safety: all methods may be called from any thread.
class ReplicaJournal : public ShardJournal {
 public:
  struct Options {
    uint32_t shard = 0;
    // Of changes that wait to be sent; more are refused with RESOURCE_EXHAUSTED.
    uint64_t max_queued_bytes = uint64_t{256} << 20;
    // A standby that takes longer to answer a change is lost; looked at with each report.
    absl::Duration patience = absl::Seconds(5);
    // The way to a standby.
    std::function<absl::StatusOr<std::shared_ptr<grpc::Channel>>(const std::string& address)> open;
    // There is something new to report.
    std::function<void()> on_news = [] {};
  };

  // `shard` outlives it, and calls it from StartJournal or a declaration on.
  ReplicaJournal(Options options, ParameterShard* shard);
  ~ReplicaJournal() override;

  // The shard has a job, and this process is its server, of that incarnation: standbys are fed from now on, when both
  // were said.
  void BeginJob();
  void BeginServing(uint64_t server);

  // Whom to feed, as the coordinator has answered; incarnation 0: nobody, and nobody may take over.
  void Feed(const v1::StandbyTarget& target);

  // How the standby follows, to be said to the coordinator; and that it has heard that.
  v1::StandbyReport Report();
  void OnHeard(const v1::StandbyReport& report);

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
  struct Change {
    uint64_t position = 0;
    std::string bytes;
  };
  using Stream = grpc::ClientReaderWriter<internal::v1::ReplicateRequest, internal::v1::ReplicateResponse>;

  void FeedUntilStopped();
  // Until the stream ends.
  void FeedOne(const v1::StandbyTarget& target);
  void SendChanges(Stream& stream);
  void OnAnswer(uint64_t position);
  bool FedLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return stage_ == Stage::kCatchingUp || stage_ == Stage::kClosingUp || stage_ == Stage::kInStep;
  }
  bool WaitsLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return stage_ == Stage::kClosingUp || stage_ == Stage::kInStep || (stage_ == Stage::kLost && reported_);
  }
  // From now on nobody may take over: answers the waits, which are over.
  Waits LetGoLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Waits TakeWaitsLocked(uint64_t position) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
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
  // Since when the oldest unanswered change waits, while any does.
  absl::Time unanswered_since_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  std::deque<Change> queue_ ABSL_GUARDED_BY(mutex_);
  uint64_t queued_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::multimap<uint64_t, std::function<void(absl::Status)>> waits_ ABSL_GUARDED_BY(mutex_);
  // Of the stream, while there is one.
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace ballast
