// SPDX-License-Identifier: Apache-2.0
#include "server/coordinator/coordinator.h"

#include "absl/strings/str_cat.h"
#include "common/flight/flight_recorder.h"
#include "common/status/error_reason.h"

namespace ballast {
namespace {

// More than are ever queued: one save and one commit.
constexpr size_t kMaxQueued = 16;
// A worker holds one lease and may have requested the next.
constexpr size_t kMaxLeasesHeld = 1024;
// Limits on calls that wait for a newer shard map: per connection, whose client needs one, and in total.
constexpr uint32_t kMaxMapWaitsPerPeer = 8;
constexpr size_t kMaxMapWaits = 8192;

void RecordWorker(const Membership::Id& id, FlightEdge edge, absl::StatusCode code) {
  if (id.role != MemberRole::kWorker) return;
  FlightRecorder::OfProcess().Add(
      {.activity = FlightActivity::kMember, .edge = edge, .code = code, .peer = id.rank, .amount = id.incarnation});
}

void RecordLeaseEnd(const Membership::Id& id, uint64_t lease, uint64_t steps) {
  FlightRecorder::OfProcess().Add(
      {.activity = FlightActivity::kLease, .edge = FlightEdge::kEnd, .peer = id.rank, .step = steps, .amount = lease});
}

}  // namespace

// A waiting call of AcquireLease; the coordinator's lock guards `ticket` and `grant`.
struct Coordinator::LeaseWait {
  const Membership::Id id;
  const std::vector<uint64_t> held;
  const GrantDone done;
  const uint32_t epochs_done;
  WaitList::Ticket ticket = WaitList::kNoTicket;
  std::optional<absl::StatusOr<Grant>> grant;
};

// A waiting call of AwaitShardMap; the coordinator's lock guards `ticket`.
struct Coordinator::MapWait {
  const uint64_t newer_than;
  const std::string peer;
  const MapDone done;
  WaitList::Ticket ticket = WaitList::kNoTicket;
};

Coordinator::Coordinator(const Options& options, const Clock* clock)
    : options_(options),
      clock_(clock),
      control_(options.job, clock->Now()),
      disk_(options.disk_thread ? std::make_unique<Executor>(1, kMaxQueued) : nullptr),
      saves_(
          disk_.get(), [this] { return SaveNow(); }, [this] { options_.journal->Settle(); }),
      waits_(clock) {}

Coordinator::~Coordinator() { disk_.reset(); }

template <typename Event>
auto Coordinator::Apply(Event event) {
  JobControl::Actions actions;
  auto result = [&] {
    absl::MutexLock lock(&mutex_);
    auto outcome = event(control_, clock_->Now());
    actions = control_.TakeActions();
    return outcome;
  }();
  CarryOut(std::move(actions));
  return result;
}

void Coordinator::CarryOut(JobControl::Actions actions) {
  if (actions.commit.has_value()) {
    const auto commit = [this, manifest = *actions.commit, keep = actions.keep] { CommitCheckpoint(manifest, keep); };
    if (disk_ == nullptr) {
      commit();
    } else if (!disk_->Submit(commit).ok()) {
      absl::MutexLock lock(&mutex_);
      control_.RetryCommit();
    }
  }
  if (actions.publish == 0) return;
  // Callers that respond check the result themselves.
  AwaitSaved(actions.publish, [](const absl::Status&) {});
  std::vector<WaitList::Ticket> waiting;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [worker, ticket] : lease_waits_) waiting.push_back(ticket);
    // Calls that know an older map, the oldest first.
    for (const auto& [newer_than, ticket] : map_waits_) {
      if (newer_than >= control_.servers().placed_map().epoch()) break;
      waiting.push_back(ticket);
    }
  }
  if (options_.log) {
    for (const std::string& notice : actions.notices) options_.log(notice);
  }
  for (WaitList::Ticket ticket : waiting) waits_.CountDown(ticket);
}

void Coordinator::CommitCheckpoint(const internal::v1::CheckpointManifest& manifest, uint32_t keep) {
  const absl::Status status = options_.checkpoints->Commit(manifest);
  // The next commit removes files that remain.
  if (status.ok()) options_.checkpoints->Prune(keep, manifest.id()).IgnoreError();
  Apply([&](JobControl& control, absl::Time now) {
    control.OnCommit(manifest.id(), status, now);
    return true;
  });
}

absl::StatusOr<Membership::Id> Coordinator::Join(Newcomer newcomer) {
  absl::StatusOr<Membership::Id> joined =
      Apply([&](JobControl& control, absl::Time now) { return control.Join(std::move(newcomer), now); });
  if (joined.ok()) RecordWorker(*joined, FlightEdge::kBegin, absl::StatusCode::kOk);
  return joined;
}

absl::StatusOr<Coordinator::HeartbeatReply> Coordinator::Heartbeat(const Membership::Id& id,
                                                                   const v1::CheckpointPart& part,
                                                                   const ReplicationReport& report) {
  return Apply([&](JobControl& control, absl::Time now) { return control.Heartbeat(id, part, report, now); });
}

absl::Status Coordinator::Leave(const Membership::Id& id, const std::string& failure, bool worker_local) {
  RecordWorker(id, FlightEdge::kEnd, failure.empty() ? absl::StatusCode::kOk : absl::StatusCode::kAborted);
  return Apply([&](JobControl& control, absl::Time now) { return control.Leave(id, failure, worker_local, now); });
}

absl::StatusOr<ShardMap> Coordinator::PlaceTensors(absl::string_view job, absl::Span<const v1::TensorSpec> specs,
                                                   absl::Span<const v1::TableSpec> tables) {
  return Apply([&](JobControl& control, absl::Time) { return control.PlaceTensors(job, specs, tables); });
}

absl::Status Coordinator::CompleteLease(const Membership::Id& id, uint64_t lease, uint64_t steps, uint64_t batches) {
  RecordLeaseEnd(id, lease, steps);
  return Apply(
      [&](JobControl& control, absl::Time now) { return control.CompleteLease(id, lease, steps, batches, now); });
}

absl::Status Coordinator::ReportWaits(const Membership::Id& server,
                                      const google::protobuf::RepeatedPtrField<v1::CausedWait>& waits) {
  return Apply([&](JobControl& control, absl::Time) { return control.ReportWaits(server, waits); });
}

absl::StatusOr<v1::JobProgress> Coordinator::ReportProgress(
    const Membership::Id& id, const v1::WorkerProgress& progress, const v1::Evaluation* evaluation,
    const v1::ReportProgressRequest::CompletedLease* completed) {
  if (completed != nullptr) RecordLeaseEnd(id, completed->lease_id(), completed->steps());
  return Apply([&](JobControl& control, absl::Time now) -> absl::StatusOr<v1::JobProgress> {
    absl::Status status = control.ReportProgress(id, progress, evaluation, now);
    if (!status.ok()) return status;
    v1::JobProgress reported = control.Progress(now);
    if (completed != nullptr) {
      status = control.CompleteLease(id, completed->lease_id(), completed->steps(), completed->batches(), now);
    }
    if (!status.ok()) return status;
    return reported;
  });
}

v1::SaveCheckpointResponse Coordinator::SaveCheckpoint(const v1::SaveCheckpointRequest& request) {
  return Apply([&](JobControl& control, absl::Time now) { return control.SaveCheckpoint(request, now); });
}

WorkerControl::Beginning Coordinator::BeginningOf(const Membership::Id& worker) const {
  absl::MutexLock lock(&mutex_);
  return control_.workers().BeginningOf(worker);
}

absl::Duration Coordinator::checkpoint_interval() const {
  absl::ReaderMutexLock lock(&mutex_);
  return control_.checkpoint_interval();
}

v1::JobProgress Coordinator::progress() const {
  absl::MutexLock lock(&mutex_);
  return control_.Progress(clock_->Now());
}

std::string Coordinator::job_name() const {
  absl::MutexLock lock(&mutex_);
  return control_.workers().job_name();
}

ShardMap Coordinator::shard_map() const {
  absl::MutexLock lock(&mutex_);
  return control_.servers().shard_map();
}

v1::GetProgressResponse Coordinator::Describe() {
  v1::GetProgressResponse response;
  uint64_t told = 0;
  {
    absl::MutexLock lock(&mutex_);
    response = control_.Describe(clock_->Now());
    told = control_.status().told();
  }
  if (!options_.job.with_standby || options_.journal == nullptr) return response;
  // If the last save failed, this starts another.
  AwaitSaved(told, [](const absl::Status&) {});
  if (saves_.saved() >= told) return response;
  for (auto& member : *response.mutable_members()) member.clear_in_step();
  return response;
}

internal::v1::CoordinatorState Coordinator::Export() const {
  absl::MutexLock lock(&mutex_);
  return control_.Export(clock_->Now());
}

absl::Status Coordinator::Restore(const internal::v1::CoordinatorState& state) {
  absl::MutexLock lock(&mutex_);
  return control_.Restore(state, clock_->Now());
}

GroupSave::Outcome Coordinator::SaveNow() {
  GroupSave::Outcome outcome;
  std::string state;
  uint64_t told = 0;
  bool sync = false;
  {
    absl::MutexLock lock(&mutex_);
    told = control_.status().told();
    // Shards on other machines survive a crash of this one: if an incarnation were forgotten and reused, they would
    // take its second worker for the first.
    sync = told > synced_told_ || control_.workers().durability().mode() == v1::Durability::WAL_SYNC;
    outcome.change = control_.status().changes();
    control_.Export(clock_->Now()).SerializeToString(&state);
  }
  outcome.status = options_.journal->Save(state, sync);
  if (!outcome.status.ok() || !sync) return outcome;
  absl::MutexLock lock(&mutex_);
  synced_told_ = told;
  return outcome;
}

void Coordinator::AwaitSaved(SavedDone done) {
  uint64_t change = 0;
  {
    absl::MutexLock lock(&mutex_);
    change = control_.status().changes();
  }
  AwaitSaved(change, std::move(done));
}

void Coordinator::AwaitSaved(uint64_t change, SavedDone done) {
  bool outlives = false;
  {
    absl::MutexLock lock(&mutex_);
    outlives = options_.journal != nullptr && control_.Outlives();
  }
  if (!outlives) return done(absl::OkStatus());
  saves_.Await(change, std::move(done));
}

void Coordinator::AwaitSaved(const Membership::Id& heard, uint64_t change, SavedDone done) {
  {
    absl::MutexLock lock(&mutex_);
    control_.BeginResponse(heard);
  }
  AwaitSaved(change, [this, heard, done = std::move(done)](const absl::Status& saved) {
    {
      absl::MutexLock lock(&mutex_);
      control_.EndResponse(heard, clock_->Now());
    }
    done(saved);
  });
}

template <typename Result>
void Coordinator::Answer(uint64_t change, absl::StatusOr<Result> result,
                         std::function<void(absl::StatusOr<Result>)> done) {
  if (!result.ok()) return done(std::move(result));
  AwaitSaved(change, [result = std::move(result), done = std::move(done)](const absl::Status& saved) {
    done(saved.ok() ? result : saved);
  });
}

WaitList::Ticket Coordinator::AcquireLease(const Membership::Id& id, std::vector<uint64_t> held, absl::Duration wait,
                                           GrantDone done, uint32_t epochs_done,
                                           const std::optional<StreamSpan>& found) {
  if (held.size() > kMaxLeasesHeld) {
    done(absl::InvalidArgumentError(absl::StrCat("held leases: got ", held.size(), ", want at most ", kMaxLeasesHeld)));
    return WaitList::kNoTicket;
  }
  // Shared by the callbacks of the wait list, which frees them together.
  const auto call = std::make_shared<LeaseWait>(LeaseWait{id, std::move(held), std::move(done), epochs_done});
  std::optional<absl::StatusOr<Grant>> grant;
  uint64_t change = 0;
  WaitList::Ticket displaced = WaitList::kNoTicket;
  {
    absl::MutexLock lock(&mutex_);
    const absl::Time now = clock_->Now();
    grant = control_.workers().Acquire(id, call->held, now, epochs_done, found);
    change = control_.status().changes();
    if (!grant.has_value()) {
      auto look_again = [this, call](WaitList::Ticket, WaitList::Cause) {
        absl::MutexLock again(&mutex_);
        if (!call->grant.has_value()) {
          call->grant = control_.workers().Acquire(call->id, call->held, std::nullopt, call->epochs_done);
        }
        return call->grant.has_value();
      };
      auto explain = [this] {
        absl::MutexLock again(&mutex_);
        return control_.workers().ExplainWait();
      };
      call->ticket = waits_.Add(now + wait, look_again, explain,
                                [this, call](const absl::Status& status) { EndLeaseWait(*call, status); });
      displaced = std::exchange(lease_waits_[id], call->ticket);
    }
  }
  if (grant.has_value()) {
    Answer(change, *std::move(grant), call->done);
    return WaitList::kNoTicket;
  }
  if (displaced != WaitList::kNoTicket) {
    waits_.End(displaced, absl::CancelledError(absl::StrCat("replaced by a later call of worker ", id.rank)));
  }
  return call->ticket;
}

void Coordinator::EndLeaseWait(const LeaseWait& call, const absl::Status& status) {
  std::optional<absl::StatusOr<Grant>> grant;
  uint64_t change = 0;
  {
    absl::MutexLock lock(&mutex_);
    const auto waiting = lease_waits_.find(call.id);
    if (waiting != lease_waits_.end() && waiting->second == call.ticket) lease_waits_.erase(waiting);
    grant = call.grant;
    change = control_.status().changes();
  }
  if (grant.has_value()) return Answer(change, *std::move(grant), call.done);
  if (!absl::IsDeadlineExceeded(status)) return call.done(status);
  Grant nothing;
  nothing.waiting_for = std::string(status.message());
  call.done(nothing);
}

WaitList::Ticket Coordinator::AwaitShardMap(uint64_t newer_than, absl::Duration wait, const std::string& peer,
                                            MapDone done) {
  absl::StatusOr<ShardMap> map;
  uint64_t change = 0;
  {
    absl::MutexLock lock(&mutex_);
    change = control_.status().changes();
    if (newer_than == 0 || control_.servers().placed_map().epoch() > newer_than) {
      map = control_.servers().shard_map();
    } else if (absl::Status room = CheckMapWaitLocked(peer); !room.ok()) {
      map = room;
    } else {
      // Shared by the callbacks of the wait list, which frees them together.
      const auto call = std::make_shared<MapWait>(MapWait{newer_than, peer, std::move(done)});
      call->ticket = waits_.Add(
          clock_->Now() + wait, [](WaitList::Ticket, WaitList::Cause) { return true; },
          [] { return std::string("the shard map to change"); },
          [this, call](const absl::Status& status) { EndMapWait(*call, status); });
      map_waits_.emplace(newer_than, call->ticket);
      ++map_waits_of_peer_[peer];
      return call->ticket;
    }
  }
  Answer(change, std::move(map), std::move(done));
  return WaitList::kNoTicket;
}

absl::Status Coordinator::CheckMapWaitLocked(const std::string& peer) const {
  const auto of_peer = map_waits_of_peer_.find(peer);
  const uint32_t waiting = of_peer == map_waits_of_peer_.end() ? 0 : of_peer->second;
  if (waiting >= kMaxMapWaitsPerPeer) {
    return WithReason(v1::ERROR_REASON_SERVER_BUSY, absl::ResourceExhaustedError(absl::StrCat(
                                                        "shard map: got a call from ", peer, " while ", waiting,
                                                        " of its calls wait, want at most ", kMaxMapWaitsPerPeer)));
  }
  if (map_waits_.size() < kMaxMapWaits) return absl::OkStatus();
  return WithReason(v1::ERROR_REASON_SERVER_BUSY,
                    absl::ResourceExhaustedError(absl::StrCat("shard map: got a call while ", map_waits_.size(),
                                                              " calls wait, want at most ", kMaxMapWaits)));
}

void Coordinator::EndMapWait(const MapWait& call, const absl::Status& status) {
  absl::StatusOr<ShardMap> map;
  uint64_t change = 0;
  {
    absl::MutexLock lock(&mutex_);
    map_waits_.erase({call.newer_than, call.ticket});
    const auto of_peer = map_waits_of_peer_.find(call.peer);
    if (--of_peer->second == 0) map_waits_of_peer_.erase(of_peer);
    if (status.ok() || absl::IsDeadlineExceeded(status)) {
      map = control_.servers().shard_map();
    } else {
      map = status;
    }
    change = control_.status().changes();
  }
  Answer(change, std::move(map), call.done);
}

}  // namespace ballast
