// SPDX-License-Identifier: Apache-2.0
#include "server/coordinator/worker_control.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/job/job_length.h"
#include "common/job/kind_names.h"
#include "common/status/error_reason.h"
#include "common/status/job_failure.h"
#include "common/tensors/tensor_spec.h"
#include "google/protobuf/util/message_differencer.h"

namespace ballast {
namespace {

// Positions in an epoch have 64 bits; this leaves room for arithmetic on rounds.
constexpr uint64_t kMaxExamples = uint64_t{1} << 48;
constexpr uint32_t kMaxBatch = uint32_t{1} << 20;

absl::Status NoData(absl::string_view job) {
  return WithReason(v1::ERROR_REASON_NO_DATA,
                    absl::FailedPreconditionError(absl::StrCat(
                        "job \"", job, "\" has no data to lease: it was joined without a model, data and examples")));
}

}  // namespace

bool WorkerControl::LeasesData(const v1::Job& job, uint64_t train_examples) {
  return job.has_model() || job.has_data() || train_examples > 0;
}

LeaseTable::Options WorkerControl::LeaseOptions(const v1::Job& job, uint64_t train_examples) const {
  return {train_examples,
          job.training().epochs(),
          options_.workers,
          job.training().batch_size(),
          KeepsLockStep(job.policy()),
          BatchesPerPush(job),
          job.data().has_stream()};
}

absl::StatusOr<std::optional<LeaseTable>> WorkerControl::BeginLeases(const v1::Job& job,
                                                                     uint64_t train_examples) const {
  std::optional<LeaseTable> leases;
  if (LeasesData(job, train_examples)) leases.emplace(LeaseOptions(job, train_examples));
  if (!options_.resume.has_value()) return leases;
  const internal::v1::CheckpointManifest& from = *options_.resume;
  std::string refused;
  if (from.job().name() != job.name()) {
    refused = absl::StrCat("it belongs to job \"", from.job().name(), "\", got job \"", job.name(), "\"");
  } else if (leases.has_value() != from.has_leases()) {
    refused = leases.has_value() ? "its workers brought their own data, this job has a model and data"
                                 : "its job had a model and data, this one has not";
  } else if (!leases.has_value()) {
    return leases;
  } else if (from.train_examples() != train_examples) {
    refused = absl::StrCat("it was trained on ", from.train_examples(), " examples, got ", train_examples);
  } else if (from.job().init_from() != job.init_from()) {
    refused = "its job has another init_from, or the file has changed since";
  } else {
    refused = std::string(leases->Resume(from.leases()).message());
  }
  if (refused.empty()) return leases;
  return CannotResume(refused);
}

absl::Status WorkerControl::CannotResume(absl::string_view why) const {
  return WithReason(
      v1::ERROR_REASON_CHECKPOINT_UNUSABLE,
      absl::FailedPreconditionError(absl::StrCat("cannot resume from checkpoint ", options_.resume->id(), ": ", why)));
}

absl::Status WorkerControl::CheckPlacement(absl::string_view job) const {
  if (absl::Status status = CheckHeldJob(job_name_, job); !status.ok()) return status;
  // A worker's Join has compared its job with the checkpoint's.
  if (job_.has_value() || !options_.resume.has_value() || options_.resume->job().name() == job) return absl::OkStatus();
  return CannotResume(absl::StrCat("it belongs to job \"", options_.resume->job().name(), "\", got job \"", job, "\""));
}

absl::Status WorkerControl::CheckJob(const Newcomer& worker) const {
  const v1::Job& job = worker.job;
  if (absl::Status status = ValidateJobName(job.name()); !status.ok()) return status;
  if (absl::Status status = CheckHeldJob(job_name_, job.name()); !status.ok()) return status;
  const bool standby = job.durability().mode() == v1::Durability::STANDBY;
  if (standby != options_.with_standby) {
    return WithReason(
        v1::ERROR_REASON_NO_STORAGE,
        absl::FailedPreconditionError(absl::StrCat(
            "job \"", job.name(), "\" has durability ", v1::Durability::Mode_Name(job.durability().mode()),
            standby ? ", which needs a standby for each server: start two servers per rank, each with --with_standby"
                    : ", but the servers were started with --with_standby, which needs durability STANDBY")),
        {{"job", job.name()}});
  }
  const bool leased = LeasesData(job, worker.train_examples);
  if (leased && (worker.train_examples < 1 || worker.train_examples > kMaxExamples || job.training().batch_size() < 1 ||
                 job.training().batch_size() > kMaxBatch || job.training().epochs() < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("job \"", job.name(), "\": got ", worker.train_examples, " examples, batch size ",
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
                      absl::FailedPreconditionError(absl::StrCat("job \"", job_->name(), "\": ", worker.description,
                                                                 " has a different job file: ", difference)),
                      {{"job", job_->name()}});
  }
  if (worker.train_examples == train_examples_) return absl::OkStatus();
  return WithReason(v1::ERROR_REASON_JOB_DIFFERS,
                    absl::FailedPreconditionError(
                        absl::StrCat("job \"", job_->name(), "\": ", worker.description, " has ", worker.train_examples,
                                     " training examples, want ", train_examples_, " as other workers have")),
                    {{"job", job_->name()}});
}

absl::StatusOr<Admission> WorkerControl::CheckJoin(const Newcomer& worker, std::optional<uint32_t> rank) const {
  if (absl::Status status = CheckJob(worker); !status.ok()) return status;
  const absl::StatusOr<uint32_t> free = members_.CheckJoin(worker.role, rank, worker.address, worker.description);
  if (!free.ok()) return free.status();
  if (!job_.has_value()) {
    if (absl::Status status = BeginLeases(worker.job, worker.train_examples).status(); !status.ok()) return status;
  }
  return Admission{worker.role, *free, {}};
}

void WorkerControl::Adopt(Newcomer& worker) {
  if (job_.has_value()) return;
  absl::StatusOr<std::optional<LeaseTable>> leases = BeginLeases(worker.job, worker.train_examples);
  if (leases.ok() && leases->has_value()) leases_.emplace(**std::move(leases));
  job_ = std::move(worker.job);
  job_name_ = job_->name();
  train_examples_ = worker.train_examples;
  if (!options_.resume.has_value()) return WatchEvaluations(nullptr);
  resumed_from_ = options_.resume->id();
  progress_.Resume(options_.resume->progress(), options_.workers);
  WatchEvaluations(options_.resume->has_early_stop() ? &options_.resume->early_stop() : nullptr);
}

void WorkerControl::WatchEvaluations(const internal::v1::EarlyStopState* saved) {
  if (!leases_.has_value() || !job_->training().has_early_stopping()) return;
  early_stop_.emplace(job_->training().early_stopping());
  if (saved != nullptr) {
    early_stop_->Restore(*saved);
  } else if (const std::optional<v1::Evaluation>& last = progress_.evaluation(); last.has_value()) {
    early_stop_->Evaluated(*last);
  }
  EndEarly();
}

bool WorkerControl::stopped_early() const {
  return early_stop_.has_value() && early_stop_->stops() && early_stop_->last_epoch() < job_->training().epochs();
}

void WorkerControl::EndEarly() {
  if (!stopped_early()) return;
  leases_->End();
  status_.Note(absl::StrCat("the training ends early: ", early_stop_->Reason()));
}

void WorkerControl::OpenEpochs() {
  if (!early_stop_.has_value()) return;
  const std::optional<Membership::Member> evaluator = members_.Find(MemberRole::kWorker, 0);
  const bool here = evaluator.has_value() && evaluator->state == Membership::State::kJoined;
  leases_->Open(here ? early_stop_->last_epoch() + 1 : job_->training().epochs());
}

void WorkerControl::OnReturn(uint32_t rank) {
  if (!leases_.has_value()) return;
  // The new process does not know which leases its predecessor held.
  leases_->Release(rank);
  leases_->Return(rank);
}

void WorkerControl::Lose(uint32_t rank) {
  if (leases_.has_value()) leases_->Release(rank);
  progress_.Lose(rank);
}

absl::Status WorkerControl::CheckWorker(const Membership::Id& id, absl::Time now) {
  if (id.role != MemberRole::kWorker) {
    return absl::InvalidArgumentError(absl::StrCat("got a ", RoleName(id.role), ", want a worker"));
  }
  if (status_.failed()) return status_.Error();
  return members_.Heartbeat(id, now);
}

std::optional<absl::StatusOr<WorkerControl::Grant>> WorkerControl::Acquire(const Membership::Id& id,
                                                                           absl::Span<const uint64_t> held,
                                                                           std::optional<absl::Time> now,
                                                                           uint32_t epochs_done,
                                                                           const std::optional<StreamSpan>& found) {
  const absl::Status joined = now.has_value()    ? CheckWorker(id, *now)
                              : status_.failed() ? status_.Error()
                                                 : members_.CheckJoined(id);
  if (!joined.ok()) return joined;
  if (!leases_.has_value()) return NoData(job_->name());
  if (!std::exchange(model_declared_, true)) status_.Record();
  if (status_.gathering()) return std::nullopt;
  Grant grant;
  grant.lease = leases_->Unanswered(id.rank, held);
  if (!grant.lease.has_value()) {
    OpenEpochs();
    grant.lease = leases_->Acquire(id.rank);
    status_.Record();
  }
  if (grant.lease.has_value()) return grant;
  if (job_->data().has_stream()) return AcquireFromStream(id.rank, found, now, std::move(grant));
  grant.finished = leases_->Finished();
  grant.epochs_done = grant.finished ? leases_->EpochsBegun() : leases_->AwaitsOpen();
  if (!grant.finished && grant.epochs_done <= epochs_done) return std::nullopt;
  return grant;
}

absl::StatusOr<WorkerControl::Grant> WorkerControl::AcquireFromStream(uint32_t rank,
                                                                      const std::optional<StreamSpan>& found,
                                                                      std::optional<absl::Time> now, Grant grant) {
  const bool looked = found.has_value() && found->begin == leases_->stream_position();
  if (found.has_value() && found->examples > 0) {
    absl::StatusOr<std::optional<DataLease>> lease = leases_->Claim(rank, *found);
    if (!lease.ok()) return lease.status();
    grant.lease = *std::move(lease);
    status_.Record();
    idle_since_ = absl::InfiniteFuture();
    if (grant.lease.has_value()) return grant;
  } else if (looked && now.has_value()) {
    idle_since_ = std::min(idle_since_, *now);
    const uint32_t limit = job_->data().stream().idle_seconds();
    if (limit > 0 && *now - idle_since_ >= absl::Seconds(limit) && leases_->all_reported() && !leases_->ended()) {
      leases_->End();
      status_.Note(absl::StrCat("the training ends: the stream had no new rows for ", limit, " s"));
      status_.Release();
    }
  }
  grant.finished = leases_->Finished();
  if (grant.finished) {
    grant.epochs_done = leases_->EpochsBegun();
  } else {
    grant.stream_position = leases_->stream_position();
    grant.max_stream_examples = leases_->MaxStreamExamples();
  }
  return grant;
}

absl::Status WorkerControl::Complete(const Membership::Id& id, uint64_t lease, uint64_t steps, uint64_t batches,
                                     absl::Time now) {
  if (absl::Status status = CheckWorker(id, now); !status.ok()) return status;
  if (!leases_.has_value()) return NoData(job_->name());
  if (steps > kMaxExamples || batches > kMaxExamples) {
    return absl::InvalidArgumentError(absl::StrCat("lease ", lease, " of worker ", id.rank, ": got ", steps,
                                                   " steps and ", batches, " batches, want at most 2^48"));
  }
  if (absl::Status status = leases_->Complete(id.rank, lease); !status.ok()) return status;
  progress_.EndedLease(id.rank, steps, batches);
  status_.Release();
  return absl::OkStatus();
}

absl::Status WorkerControl::Report(const Membership::Id& id, const v1::WorkerProgress& progress,
                                   const v1::Evaluation* evaluation, absl::Time now) {
  if (absl::Status status = CheckWorker(id, now); !status.ok()) return status;
  const uint32_t epochs = leases_.has_value() ? job_->training().epochs() : 0;
  if (absl::Status status = CheckReport(progress, evaluation, options_.servers, epochs); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("report of worker ", id.rank, ": ", status.message()));
  }
  progress_.Report(id.rank, id.incarnation, progress, absl::ToDoubleSeconds(status_.RunningFor(now)));
  status_.Record();
  if (evaluation == nullptr) return absl::OkStatus();
  progress_.Evaluated(*evaluation);
  // In async, the result is evaluated once more after the early end.
  if (!early_stop_.has_value() || id.rank != 0 || stopped_early()) return absl::OkStatus();
  early_stop_->Evaluated(*evaluation);
  EndEarly();
  // The next epoch may begin.
  status_.Release();
  return absl::OkStatus();
}

std::string WorkerControl::ExplainWait() const {
  if (std::string missing = members_.Missing(); !missing.empty() && status_.gathering()) {
    return absl::StrCat(missing, " to join");
  }
  if (!leases_.has_value()) return "";
  const uint32_t epochs = leases_->AwaitsOpen();
  return epochs > 0 ? absl::StrCat("worker 0 to evaluate epoch ", epochs) : leases_->Outstanding();
}

WorkerControl::Beginning WorkerControl::BeginningOf(const Membership::Id& worker) const {
  Beginning beginning{progress_.StepOf(worker.rank), std::nullopt};
  if (resumed() && worker.incarnation == members_.first_incarnation(worker.rank)) {
    beginning.resumed_batches = progress_.BatchesOf(worker.rank);
  }
  return beginning;
}

void WorkerControl::Fill(v1::JobProgress& progress) const {
  progress.set_job(job_name_);
  if (job_.has_value()) {
    progress.set_mode(KindName(job_->policy()));
    progress.set_epochs(job_->training().epochs());
    progress.set_total_examples(train_examples_ * job_->training().epochs());
  }
  if (leases_.has_value()) {
    progress.set_examples_repeated(leases_->repeated_examples());
    progress.set_epochs_done(leases_->epochs_done());
    if (job_->data().has_stream()) *progress.mutable_stream_position() = ToProto(leases_->stream_position());
  }
  progress_.Fill(progress);
  progress.set_stopped_early(stopped_early());
}

void WorkerControl::HoldData() {
  if (leases_.has_value()) leases_->Hold();
}

void WorkerControl::ReleaseData() {
  if (leases_.has_value()) leases_->Release();
}

uint32_t WorkerControl::epochs_begun() const { return std::max(1u, leases_.has_value() ? leases_->EpochsBegun() : 0); }

void WorkerControl::FillManifest(internal::v1::CheckpointManifest& manifest) const {
  if (job_.has_value()) *manifest.mutable_job() = *job_;
  manifest.mutable_job()->set_name(job_name_);
  manifest.set_train_examples(train_examples_);
  if (leases_.has_value()) *manifest.mutable_leases() = leases_->Export();
  *manifest.mutable_progress() = progress_.Export();
  if (early_stop_.has_value()) *manifest.mutable_early_stop() = early_stop_->state();
}

void WorkerControl::Export(internal::v1::CoordinatorState& state) const {
  state.set_job_name(job_name_);
  if (job_.has_value()) *state.mutable_job() = *job_;
  state.set_train_examples(train_examples_);
  state.set_resumed_from(resumed_from_);
  state.set_model_declared(model_declared_);
  if (leases_.has_value()) *state.mutable_leases() = leases_->Export();
  *state.mutable_progress() = progress_.Export();
  if (early_stop_.has_value()) *state.mutable_early_stop() = early_stop_->state();
}

absl::Status WorkerControl::Restore(const internal::v1::CoordinatorState& state) {
  job_name_ = state.job_name();
  progress_.Restore(state.progress());
  if (!state.has_job()) return absl::OkStatus();
  job_ = state.job();
  job_name_ = job_->name();
  train_examples_ = state.train_examples();
  resumed_from_ = state.resumed_from();
  model_declared_ = state.model_declared();
  if (!LeasesData(*job_, train_examples_)) return absl::OkStatus();
  leases_.emplace(LeaseOptions(*job_, train_examples_));
  absl::Status status = leases_->Restore(state.leases());
  if (status.ok()) WatchEvaluations(state.has_early_stop() ? &state.early_stop() : nullptr);
  return status;
}

}  // namespace ballast
