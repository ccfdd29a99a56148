// SPDX-License-Identifier: Apache-2.0
#include "server/coordinator/coordinator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/job/durability_config.h"
#include "common/status/error_reason.h"
#include "common/status/held_job.h"
#include "common/status/job_failure.h"
#include "common/tensors/tensor_spec.h"
#include "google/protobuf/util/message_differencer.h"

namespace ballast {
namespace {

// Positions in an epoch have 64 bits; this leaves room for arithmetic on rounds.
constexpr uint64_t kMaxExamples = uint64_t{1} << 48;
constexpr uint32_t kMaxBatch = uint32_t{1} << 20;
constexpr size_t kMaxNotices = 16;
// More than are ever queued: one save and one commit.
constexpr size_t kMaxQueued = 16;

bool IsLeft(const Membership::Member& member) {
  return member.id.role == MemberRole::kWorker && member.state == Membership::State::kLeft;
}

}  // namespace

Coordinator::Coordinator(const Options& options, const Clock* clock)
    : options_(options),
      clock_(clock),
      heard_(clock->Now()),
      membership_(options.servers, options.workers, options.member_ttl, clock, options.with_standby),
      standbys_(options.servers),
      board_(clock),
      disk_(options.disk_thread ? std::make_unique<Executor>(1, kMaxQueued) : nullptr),
      saves_(
          disk_.get(), [this] { return SaveNow(); }, [this] { options_.journal->Settle(); }),
      waits_(clock) {
  if (!options_.resume.has_value()) return;
  membership_.BeginAbove({options_.resume->incarnations().begin(), options_.resume->incarnations().end()});
}

Coordinator::~Coordinator() { disk_.reset(); }

absl::Status Coordinator::CheckJobLocked(const Newcomer& newcomer) const {
  const v1::Job& job = newcomer.job;
  if (absl::Status status = ValidateJobName(job.name()); !status.ok()) return status;
  if (absl::Status status = CheckHeldJob(job_name_, job.name()); !status.ok()) return status;
  if (absl::Status status = CheckDurabilityLocked(job); !status.ok()) return status;
  if (!LeasesData(job, newcomer.train_examples)) {
    if (job.durability().mode() == v1::Durability::CHECKPOINT) {
      return WithReason(v1::ERROR_REASON_INVALID_REQUEST,
                        absl::InvalidArgumentError(absl::StrCat(
                            "job \"", job.name(), "\": got durability CHECKPOINT without a model and data, want NONE, ",
                            "WAL, WAL_SYNC or STANDBY: checkpoints are taken between leases of data")));
    }
  } else if (newcomer.train_examples < 1 || newcomer.train_examples > kMaxExamples || job.training().batch_size() < 1 ||
             job.training().batch_size() > kMaxBatch || job.training().epochs() < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("job \"", job.name(), "\": got ", newcomer.train_examples, " examples, batch size ",
                     job.training().batch_size(), ", ", job.training().epochs(),
                     " epochs, want at least 1 of each, at most 2^48 examples and a batch size of at most 2^20"));
  }
  if (!job_.has_value()) return absl::OkStatus();
  google::protobuf::util::MessageDifferencer differencer;
  std::string difference;
  differencer.ReportDifferencesToString(&difference);
  if (!differencer.Compare(*job_, job)) {
    std::replace(difference.begin(), difference.end(), '\n', ';');
    return WithReason(v1::ERROR_REASON_JOB_DIFFERS,
                      absl::FailedPreconditionError(absl::StrCat("job \"", job_->name(), "\": ", newcomer.description,
                                                                 " has a different job file: ", difference)),
                      {{"job", job_->name()}});
  }
  if (newcomer.train_examples == train_examples_) return absl::OkStatus();
  return WithReason(v1::ERROR_REASON_JOB_DIFFERS,
                    absl::FailedPreconditionError(absl::StrCat(
                        "job \"", job_->name(), "\": ", newcomer.description, " has ", newcomer.train_examples,
                        " training examples, want ", train_examples_, " as other workers have")),
                    {{"job", job_->name()}});
}

absl::StatusOr<uint32_t> Coordinator::LateRankLocked(const Newcomer& newcomer) const {
  const bool finished = state_ == v1::JOB_STATE_FINISHED;
  const bool server = newcomer.role == MemberRole::kServer && newcomer.rank.has_value();
  if (finished && server && OutlivesAServer(job_->durability())) return *newcomer.rank;
  if (finished && newcomer.role == MemberRole::kWorker) {
    for (const Membership::Member& member : membership_.members()) {
      const bool asked = !newcomer.rank.has_value() || *newcomer.rank == member.id.rank;
      const bool gone = member.state == Membership::State::kLost || member.state == Membership::State::kFailed;
      // A live worker still gets ALREADY_EXISTS, after which the caller may retry.
      if (member.id.role == MemberRole::kWorker && asked && (gone || member.state == Membership::State::kJoined)) {
        return member.id.rank;
      }
    }
  }
  const std::string ended =
      absl::StrCat("the job has ended (", finished ? "finished" : reason_, "); restart the servers to train again");
  if (finished) return WithReason(v1::ERROR_REASON_JOB_ENDED, absl::FailedPreconditionError(ended));
  return WithJobFailure(absl::FailedPreconditionError(ended), failure_);
}

// Updates the state for a member that has just joined.
void Coordinator::WelcomeLocked(const Membership::Id& id) {
  if (id.role == MemberRole::kStandby) standbys_.Follow(id.rank, id.incarnation);
  if (id.incarnation == 1) return;
  if (id.role == MemberRole::kWorker && leases_.has_value()) {
    // The new process does not know which leases its predecessor held.
    leases_->Release(id.rank);
    leases_->Return(id.rank);
  }
  if (state_ == v1::JOB_STATE_RUNNING) NoteLocked(absl::StrCat(RoleName(id.role), " ", id.rank, " has rejoined"));
}

absl::StatusOr<Coordinator::Admission> Coordinator::CheckJoinLocked(const Newcomer& newcomer) const {
  std::optional<uint32_t> rank = newcomer.rank;
  if (state_ == v1::JOB_STATE_FINISHED || state_ == v1::JOB_STATE_FAILED) {
    const absl::StatusOr<uint32_t> late = LateRankLocked(newcomer);
    if (!late.ok()) return late.status();
    rank = *late;
  }
  if (newcomer.role == MemberRole::kServer) return CheckServerLocked(newcomer, rank);
  if (absl::Status status = CheckJobLocked(newcomer); !status.ok()) return status;
  const absl::StatusOr<uint32_t> free =
      membership_.CheckJoin(newcomer.role, rank, newcomer.address, newcomer.description);
  if (!free.ok()) return free.status();
  Admission admission{newcomer.role, *free, {}, false, std::nullopt};
  if (job_.has_value()) return admission;
  admission.brings_job = true;
  if (!LeasesData(newcomer.job, newcomer.train_examples)) {
    if (!options_.resume.has_value()) return admission;
    return WithReason(v1::ERROR_REASON_CHECKPOINT_UNUSABLE,
                      absl::FailedPreconditionError(absl::StrCat(
                          "cannot resume from checkpoint ", options_.resume->id(), ": the job has no model and data")));
  }
  absl::StatusOr<LeaseTable> leases = BeginLeases(newcomer);
  if (!leases.ok()) return leases.status();
  admission.leases.emplace(*std::move(leases));
  return admission;
}

absl::StatusOr<Membership::Id> Coordinator::AdmitLocked(Newcomer newcomer, Admission admission) {
  for (const Membership::Member& before : admission.replaced) {
    const std::string what =
        absl::StrCat(ballast::Describe(before), " was replaced at its address by ", newcomer.description);
    absl::Status left = membership_.Leave(before.id, Membership::State::kFailed, "was replaced at its address");
    if (!left.ok()) return left;
    if (before.id.role == MemberRole::kServer) {
      LoseServerLocked(before.id.rank, what);
    } else {
      LoseLocked(before.id, what);
    }
  }
  if (admission.brings_job) {
    job_ = std::move(newcomer.job);
    job_name_ = job_->name();
    train_examples_ = newcomer.train_examples;
    if (admission.leases.has_value()) leases_.emplace(*std::move(admission.leases));
    if (options_.resume.has_value()) {
      resumed_from_ = options_.resume->id();
      board_.Resume(options_.resume->progress(), options_.workers);
    }
  }
  const absl::StatusOr<Membership::Id> id =
      membership_.Join(admission.role, admission.rank, std::move(newcomer.address), std::move(newcomer.description),
                       newcomer.process, newcomer.control_address);
  if (!id.ok()) return id;
  // A returning server may have a different control port.
  if (id->role == MemberRole::kServer && !map_.shards().empty()) {
    map_.MoveControl(id->rank, std::move(newcomer.control_address));
  }
  ChangedLocked();
  WelcomeLocked(*id);
  UpdateStateLocked();
  return id;
}

absl::StatusOr<Membership::Id> Coordinator::Join(Newcomer newcomer) {
  absl::StatusOr<Membership::Id> id;
  {
    absl::MutexLock lock(&mutex_);
    UpdateStateLocked();
    absl::StatusOr<Admission> admission = CheckJoinLocked(newcomer);
    if (!admission.ok()) return admission.status();
    id = AdmitLocked(std::move(newcomer), *std::move(admission));
    if (!id.ok()) return id;
  }
  Publish();
  return id;
}

void Coordinator::FailLocked(std::string reason, const std::optional<Membership::Id>& at_fault) {
  if (state_ == v1::JOB_STATE_FAILED || state_ == v1::JOB_STATE_FINISHED) return;
  state_ = v1::JOB_STATE_FAILED;
  reason_ = std::move(reason);
  if (at_fault.has_value()) {
    *failure_.mutable_member() = ToProto(*at_fault);
    if (const auto member = membership_.Find(at_fault->role, at_fault->rank); member.has_value()) {
      failure_.set_process(member->process);
      failure_.set_description(member->description);
    }
  }
  ended_ = clock_->Now();
  NoteLocked(absl::StrCat("the job has failed: ", reason_));
}

void Coordinator::FinishLocked() {
  state_ = v1::JOB_STATE_FINISHED;
  ended_ = clock_->Now();
  ChangedLocked();
}

void Coordinator::NoteLocked(std::string notice) {
  notices_.push_back(std::move(notice));
  if (notices_.size() > kMaxNotices) notices_.pop_front();
  ++notices_made_;
  ChangedLocked();
}

absl::Duration Coordinator::ReturnTimeLocked() const {
  return ReturnTime(job_.has_value() ? job_->durability() : v1::Durability());
}

void Coordinator::LoseLocked(const Membership::Id& id, const std::string& what) {
  ChangedLocked();
  if (id.role == MemberRole::kWorker) {
    if (leases_.has_value()) leases_->Release(id.rank);
    board_.Forget(id.rank);
  }
  if (id.role == MemberRole::kStandby) standbys_.Lose(id.rank, id.incarnation);
  if (state_ != v1::JOB_STATE_RUNNING) return;
  if (id.role == MemberRole::kStandby) {
    NoteLocked(absl::StrCat(what, "; server ", id.rank, " continues without a standby until another joins"));
    return;
  }
  const std::string wait = absl::FormatDuration(ReturnTimeLocked());
  if (id.role == MemberRole::kWorker) {
    NoteLocked(membership_.AnyJoined(MemberRole::kWorker)
                   ? absl::StrCat(what, "; the others continue")
                   : absl::StrCat(what, "; no worker is left, and the job fails unless one returns within ", wait));
    return;
  }
  if (job_.has_value() && OutlivesAServer(job_->durability())) {
    ++servers_lost_;
    NoteLocked(absl::StrCat(what, "; the others wait up to ", wait, " for it to return"));
    return;
  }
  FailLocked(absl::StrCat(what, ", and its shard is lost: with durability wal, wal_sync or standby the job would have ",
                          "survived"),
             id);
}

void Coordinator::CheckReturnsLocked() {
  const absl::Time now = clock_->Now();
  const absl::Duration return_time = ReturnTimeLocked();
  for (const Membership::Member& member : membership_.members()) {
    const bool waited_for = member.id.role == MemberRole::kServer && member.state != Membership::State::kJoined &&
                            member.gone_since + return_time <= now;
    if (!waited_for) continue;
    return FailLocked(absl::StrCat(ballast::Describe(member), " ", member.reason, " and did not return within ",
                                   absl::FormatDuration(return_time)),
                      member.id);
  }
  if (membership_.AnyJoined(MemberRole::kWorker)) {
    deserted_since_ = absl::InfiniteFuture();
    return;
  }
  deserted_since_ = std::min(deserted_since_, now);
  const std::vector<Membership::Member> members = membership_.members();
  if (!leases_.has_value()) {
    // Only the workers know when the job is done, and those that left did their part. A lost one may still return.
    const auto left = static_cast<uint32_t>(std::count_if(members.begin(), members.end(), IsLeft));
    if (left == options_.workers || (left > 0 && deserted_since_ + return_time <= now)) return FinishLocked();
  }
  if (deserted_since_ + return_time > now) return;
  const std::string last = notices_.empty() ? "" : absl::StrCat("; the last event: ", notices_.back());
  FailLocked(absl::StrCat("no worker was left, and none returned within ", absl::FormatDuration(return_time), last));
}

void Coordinator::HearLocked(const Membership::Id& id) {
  // Membership::Heartbeat would bring back a lost server.
  if (membership_.CheckJoined(id).ok()) membership_.Heartbeat(id).IgnoreError();
}

void Coordinator::DiscountSilenceLocked() {
  const absl::Time now = clock_->Now();
  for (const auto& [number, id] : unanswered_) HearLocked(id);
  const absl::Duration silence = now - std::exchange(heard_, now);
  if (silence <= options_.longest_silence) return;
  membership_.Discount(silence);
  if (deserted_since_ != absl::InfiniteFuture()) deserted_since_ = std::min(deserted_since_ + silence, now);
}

void Coordinator::UpdateStateLocked() {
  DiscountSilenceLocked();
  for (const Membership::Member& member : membership_.Expire()) {
    if (member.id.role == MemberRole::kWorker && state_ == v1::JOB_STATE_RUNNING) ++workers_lost_;
    LoseLocked(member.id, absl::StrCat(ballast::Describe(member), " ", member.reason));
  }
  TakeOverSilentLocked();
  if (state_ == v1::JOB_STATE_GATHERING && membership_.Missing().empty()) {
    state_ = v1::JOB_STATE_RUNNING;
    running_since_ = clock_->Now();
    if (ResumedLocked()) running_since_ -= absl::Seconds(options_.resume->seconds());
    ChangedLocked();
  }
  if (state_ == v1::JOB_STATE_RUNNING && leases_.has_value() && leases_->Finished()) {
    FinishLocked();
  }
  if (state_ == v1::JOB_STATE_RUNNING) CheckReturnsLocked();
}

absl::StatusOr<Coordinator::HeartbeatReply> Coordinator::Heartbeat(const Membership::Id& id,
                                                                   const v1::CheckpointPart& part,
                                                                   const ReplicationReport& news) {
  HeartbeatReply reply;
  bool changed = false;
  {
    absl::MutexLock lock(&mutex_);
    const uint64_t before = changes_;
    DiscountSilenceLocked();
    if (absl::Status status = OnReplicationReportLocked(id, news, reply); !status.ok()) return status;
    if (absl::Status status = membership_.Heartbeat(reply.promoted.value_or(id)); !status.ok()) return status;
    UpdateStateLocked();
    reply.state = state_;
    reply.reason = ReasonLocked();
    reply.failure = failure_;
    if (id.role == MemberRole::kServer) AdvanceCheckpointLocked(id.rank, part, reply);
    changed = changes_ != before;
    reply.change = told_;
    for (const Membership::Member& member : membership_.members()) {
      const bool here = member.state == Membership::State::kJoined;
      if (member.id.role == MemberRole::kWorker && !here) reply.absent.push_back(member.id);
    }
  }
  BeginCommit();
  if (changed) Publish();
  return reply;
}

absl::Status Coordinator::Leave(const Membership::Id& id, const std::string& failure, bool worker_local) {
  {
    absl::MutexLock lock(&mutex_);
    const bool was_here = membership_.Heartbeat(id).ok();
    const bool pair = options_.with_standby && id.role != MemberRole::kWorker;
    const auto state = failure.empty()         ? Membership::State::kLeft
                       : worker_local && !pair ? Membership::State::kLost
                                               : Membership::State::kFailed;
    if (absl::Status status = membership_.Leave(id, state, failure.empty() ? "left" : failure); !status.ok()) {
      return status;
    }
    ChangedLocked();
    const std::string who = absl::StrCat(RoleName(id.role), " ", id.rank);
    const std::string how = failure.empty() ? " left before the job was done" : absl::StrCat(" was lost: ", failure);
    if (was_here && !failure.empty() && !worker_local && !pair) FailLocked(absl::StrCat(who, " failed: ", failure), id);
    // Without leases only the worker knows when it is done.
    const bool done = state_ == v1::JOB_STATE_FINISHED || (leases_.has_value() && leases_->Finished()) ||
                      (!leases_.has_value() && id.role == MemberRole::kWorker && failure.empty());
    if (was_here && pair && id.role == MemberRole::kServer) {
      LoseServerLocked(id.rank, absl::StrCat(who, how));
    } else if (was_here && !done) {
      if (worker_local && id.role == MemberRole::kWorker && state_ == v1::JOB_STATE_RUNNING) ++workers_lost_;
      LoseLocked(id, absl::StrCat(who, how));
    }
    UpdateStateLocked();
  }
  Publish();
  return absl::OkStatus();
}

absl::StatusOr<ShardMap> Coordinator::PlaceTensors(absl::string_view job, absl::Span<const v1::TensorSpec> specs) {
  absl::StatusOr<ShardMap> map = Place(job, specs);
  if (map.ok()) Publish();
  return map;
}

absl::StatusOr<ShardMap> Coordinator::Place(absl::string_view job, absl::Span<const v1::TensorSpec> specs) {
  if (absl::Status status = ValidateJobName(job); !status.ok()) return status;
  absl::MutexLock lock(&mutex_);
  if (std::string missing = membership_.MissingServers(); !missing.empty()) {
    // A failed job's servers will not join any more.
    if (state_ == v1::JOB_STATE_FAILED) return JobFailedError(reason_, failure_);
    return WithReason(
        v1::ERROR_REASON_SERVERS_MISSING,
        absl::UnavailableError(absl::StrCat("tensors cannot be placed yet: ", missing, " has not joined")),
        {{"members", missing}});
  }
  if (absl::Status status = CheckHeldJob(job_name_, job); !status.ok()) return status;
  if (map_.shards().empty()) {
    ShardMap first(membership_.ServerAddresses(), membership_.ServerControlAddresses());
    if (absl::Status status = first.Place(specs); !status.ok()) return status;
    map_ = std::move(first);
  } else if (absl::Status status = map_.Place(specs); !status.ok()) {
    return status;
  }
  job_name_ = std::string(job);
  ++changes_;
  return map_;
}

bool Coordinator::OutlivesLocked() const {
  if (options_.journal == nullptr) return false;
  return options_.with_standby || (job_.has_value() && OutlivesAServer(job_->durability()));
}

GroupSave::Outcome Coordinator::SaveNow() {
  GroupSave::Outcome outcome;
  std::string state;
  uint64_t told = 0;
  bool sync = false;
  {
    absl::MutexLock lock(&mutex_);
    // Shards on other machines survive a crash of this one: if an incarnation were forgotten and reused, they would
    // take its second worker for the first.
    sync = told_ > synced_told_ || (job_.has_value() && job_->durability().mode() == v1::Durability::WAL_SYNC);
    told = told_;
    outcome.change = changes_;
    ExportLocked().SerializeToString(&state);
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
    change = changes_;
  }
  AwaitSaved(change, std::move(done));
}

void Coordinator::AwaitSaved(uint64_t change, SavedDone done) {
  bool outlives = false;
  {
    absl::MutexLock lock(&mutex_);
    outlives = OutlivesLocked();
  }
  if (!outlives) return done(absl::OkStatus());
  saves_.Await(change, std::move(done));
}

void Coordinator::AwaitSaved(const Membership::Id& heard, uint64_t change, SavedDone done) {
  uint64_t number = 0;
  {
    absl::MutexLock lock(&mutex_);
    number = next_unanswered_++;
    unanswered_.emplace(number, heard);
  }
  AwaitSaved(change, [this, number, heard, done = std::move(done)](const absl::Status& saved) {
    {
      absl::MutexLock lock(&mutex_);
      unanswered_.erase(number);
      HearLocked(heard);
    }
    done(saved);
  });
}

void Coordinator::Publish() {
  // Callers that respond check the result themselves.
  AwaitSaved([](const absl::Status&) {});
  std::vector<WaitList::Ticket> waiting;
  std::vector<std::string> news;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [worker, ticket] : lease_waits_) waiting.push_back(ticket);
    // Calls that know an older map, the oldest first.
    for (const auto& [newer_than, ticket] : map_waits_) {
      if (newer_than >= map_.epoch()) break;
      waiting.push_back(ticket);
    }
    const uint64_t unlogged = std::min<uint64_t>(notices_made_ - notices_logged_, notices_.size());
    news.assign(notices_.end() - unlogged, notices_.end());
    notices_logged_ = notices_made_;
  }
  if (options_.log) {
    for (const std::string& notice : news) options_.log(notice);
  }
  for (WaitList::Ticket ticket : waiting) waits_.CountDown(ticket);
}

std::string Coordinator::job_name() const {
  absl::MutexLock lock(&mutex_);
  return job_name_;
}

}  // namespace ballast
