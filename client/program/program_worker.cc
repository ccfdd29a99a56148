// SPDX-License-Identifier: Apache-2.0
#include "client/program/program_worker.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/job/job_config.h"
#include "common/job/job_file.h"
#include "common/job/job_length.h"
#include "common/program/this_process.h"
#include "common/run/run_folder.h"
#include "common/status/error_reason.h"
#include "common/status/job_failure.h"

namespace ballast {
namespace {

// Time for the coordinator to declare a former process of this rank lost, also if it has just been restarted itself.
constexpr absl::Duration kJoinTimeout = absl::Seconds(15);
constexpr absl::Duration kConnectTimeout = absl::Seconds(20);
// Time to wait for a lease before the worker pauses. In lock step all workers get their leases at about the same time,
// and a checkpoint delays them all together, so the time is longer.
constexpr absl::Duration kLeaseTimeout = absl::Milliseconds(100);
constexpr absl::Duration kLockStepLeaseTimeout = absl::Seconds(1);
// Steps after which a worker continues even if it has not reached the others' step; a few steps normally suffice.
constexpr int kMaxStepsToCatchUp = 100;

constexpr char kJobComment[] = "# The job of a program, as its worker 0 joined it.\n";

absl::Status CheckOptions(const ProgramWorker::Options& options) {
  const v1::Training& training = options.job.training();
  if (training.has_early_stopping()) {
    return absl::InvalidArgumentError(
        "training.early_stopping: got a rule, want none in the job of a program, which ends when it likes");
  }
  if (options.examples > 0 && (training.epochs() < 1 || training.batch_size() < 1)) {
    return absl::InvalidArgumentError(absl::StrCat("training: got ", training.epochs(), " epochs and a batch size of ",
                                                   training.batch_size(), ", want at least 1 of each for ",
                                                   options.examples, " examples"));
  }
  return ValidatePolicy(options.job.policy(), 0);
}

absl::Duration TimeLeft(absl::Time deadline) { return std::max(deadline - absl::Now(), absl::Milliseconds(1)); }

}  // namespace

absl::StatusOr<std::unique_ptr<ProgramWorker>> ProgramWorker::Join(Options options) {
  const absl::Time deadline = absl::Now() + options.gather_timeout;
  if (!options.job.has_policy()) options.job.mutable_policy()->mutable_sync();
  if (absl::Status status = CheckOptions(options); !status.ok()) return status;
  auto link = CoordinatorLink::Connect(options.coordinator, std::min(TimeLeft(deadline), kConnectTimeout),
                                       options.credentials, options.job.name());
  if (!link.ok()) return link.status();
  v1::JoinRequest request;
  request.set_role(v1::ROLE_WORKER);
  if (options.rank.has_value()) request.set_rank(*options.rank);
  request.set_description(DescribeThisProcess());
  request.set_process(getpid());
  *request.mutable_job() = options.job;
  request.set_train_examples(options.examples);
  absl::StatusOr<v1::JoinResponse> joined = (*link)->Join(std::move(request), kJoinTimeout);
  if (!joined.ok()) return joined.status();
  std::unique_ptr<ProgramWorker> worker(new ProgramWorker(std::move(options)));
  worker->joined_ = *std::move(joined);
  worker->link_ = *std::move(link);
  ProgramWorker* const self = worker.get();
  if (!self->options_.flight_dir.empty()) {
    self->flight_.emplace(self->options_.flight_dir, absl::StrCat("worker ", self->rank()));
  }
  if (self->options_.trace.has_value()) {
    self->tracer_ = std::make_unique<CallTracer>(*self->options_.trace, /*timeline=*/nullptr);
  }
  self->link_->StartHeartbeats([self](const JobCondition& condition) { self->OnJobChange(condition); });
  absl::Status status = self->Connect(deadline);
  if (status.ok()) status = self->AwaitMembers(deadline);
  if (status.ok() && self->rank() == 0 && !self->options_.run_dir.empty()) {
    status = SaveJob(RunFolder(self->options_.run_dir).job(), self->options_.job, kJobComment);
  }
  if (status.ok()) return worker;
  // The others still gather, and this worker may join again.
  const absl::Status left = self->link_->Leave(std::string(status.message()), /*worker_local=*/true);
  return left.ok() ? status : Annotate(status, "could not join, nor leave");
}

ProgramWorker::~ProgramWorker() {
  Client* client = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    client = client_.get();
  }
  if (client == nullptr) return;
  // The results of calls may use this worker, to explain errors.
  client->Shutdown("the worker ends");
  client->WaitUntilIdle();
}

absl::Status ProgramWorker::Connect(absl::Time deadline) {
  ClientOptions options = OptionsForWorker(options_.job, joined_);
  options.coordinator = options_.coordinator;
  options.credentials = options_.credentials;
  options.shared_memory = options_.shared_memory;
  options.data_streams = options_.data_streams;
  options.tracer = tracer_.get();
  options.connect_timeout = kConnectTimeout;
  options.gather_timeout = std::max(TimeLeft(deadline), absl::Seconds(1));
  absl::StatusOr<std::unique_ptr<Client>> client = Client::Connect(std::move(options));
  if (!client.ok()) return client.status();
  link_->Follow((*client)->shard_map());
  absl::MutexLock lock(&mutex_);
  client_ = *std::move(client);
  return absl::OkStatus();
}

absl::Status ProgramWorker::AwaitMembers(absl::Time deadline) {
  {
    absl::MutexLock lock(&mutex_);
    const auto gathered = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return state_ != v1::JOB_STATE_GATHERING; };
    if (mutex_.AwaitWithDeadline(absl::Condition(&gathered), deadline)) {
      if (state_ != v1::JOB_STATE_FAILED) return absl::OkStatus();
    }
  }
  const JobCondition now = condition();
  if (now.state == v1::JOB_STATE_FAILED) return JobFailedError(now.reason, now.failure);
  const absl::StatusOr<v1::GetProgressResponse> progress = link_->GetProgress();
  if (!progress.ok()) return progress.status();
  uint32_t servers = 0, workers = 0;
  for (const auto& each : progress->members()) {
    if (each.state() != "joined") continue;
    servers += each.member().role() == v1::ROLE_SERVER;
    workers += each.member().role() == v1::ROLE_WORKER;
  }
  return WithReason(v1::ERROR_REASON_WAIT_TIMEOUT,
                    absl::DeadlineExceededError(
                        absl::StrCat("job \"", options_.job.name(), "\" has not gathered within ",
                                     absl::FormatDuration(options_.gather_timeout), ": got ", servers, " servers and ",
                                     workers, " workers, want ", joined_.servers(), " and ", joined_.workers())));
}

void ProgramWorker::OnJobChange(const JobCondition& condition) {
  Client* client = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    state_ = condition.state;
    client = client_.get();
  }
  if (condition.state != v1::JOB_STATE_FAILED) return;
  if (client != nullptr) client->Shutdown(condition.reason);
  link_->CancelCalls(condition.reason);
}

Client& ProgramWorker::client() const {
  absl::MutexLock lock(&mutex_);
  return *client_;
}

absl::Status ProgramWorker::Explain(const absl::Status& status) const {
  absl::Status explained = status;
  if (const JobCondition now = condition(); absl::IsCancelled(status) && now.state == v1::JOB_STATE_FAILED) {
    explained = now.lost ? WithReason(v1::ERROR_REASON_MEMBER_LOST, absl::FailedPreconditionError(now.reason))
                         : JobFailedError(now.reason, now.failure);
  }
  const v1::ErrorReason reason = ReasonOf(explained);
  if (reason == v1::ERROR_REASON_JOB_FAILED || reason == v1::ERROR_REASON_MEMBER_LOST ||
      absl::IsDeadlineExceeded(explained) || absl::IsUnavailable(explained)) {
    FlightDumper::Request(std::string(explained.message()));
  }
  return explained;
}

template <typename Spec>
absl::StatusOr<std::vector<uint32_t>> ProgramWorker::AssignIds(std::vector<Spec>& specs) {
  const absl::StatusOr<ShardMap> map = link_->GetShardMap();
  if (!map.ok()) return Explain(map.status());
  uint32_t last = 0;
  absl::flat_hash_map<std::string, uint32_t> ids;
  const auto add = [&](const auto& spec) {
    ids.try_emplace(spec.name(), spec.id());
    last = std::max(last, spec.id());
  };
  for (const PlacedTensor& tensor : map->tensors()) add(tensor.spec);
  for (const PlacedTable& table : map->tables()) add(table.spec);
  std::vector<uint32_t> assigned;
  for (Spec& spec : specs) {
    const auto [entry, added] = ids.try_emplace(spec.name(), last + 1);
    if (added) ++last;
    spec.set_id(entry->second);
    assigned.push_back(spec.id());
  }
  return assigned;
}

absl::StatusOr<std::vector<uint32_t>> ProgramWorker::Declare(std::vector<v1::TensorSpec> specs) {
  absl::StatusOr<std::vector<uint32_t>> ids = AssignIds(specs);
  if (!ids.ok()) return ids;
  const uint64_t updates = options_.examples == 0 ? 0 : CountUpdates(options_.job, options_.examples, workers());
  for (v1::TensorSpec& spec : specs) {
    if (updates > 0) *spec.mutable_optimizer() = WithScheduleLength(spec.optimizer(), updates);
  }
  const absl::Status status = Explain(client().Declare(specs));
  if (!status.ok()) return status;
  link_->Follow(client().shard_map());
  return ids;
}

absl::StatusOr<std::vector<uint32_t>> ProgramWorker::DeclareTables(std::vector<v1::TableSpec> specs) {
  absl::StatusOr<std::vector<uint32_t>> ids = AssignIds(specs);
  if (!ids.ok()) return ids;
  const absl::Status status = Explain(client().DeclareTables(specs));
  if (!status.ok()) return status;
  link_->Follow(client().shard_map());
  return ids;
}

absl::StatusOr<std::optional<ProgramWorker::Lease>> ProgramWorker::NextLease(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  const absl::Duration brief = KeepsLockStep(options_.job.policy()) ? kLockStepLeaseTimeout : kLeaseTimeout;
  absl::StatusOr<v1::AcquireLeaseResponse> response = link_->AcquireLease(away_ ? timeout : std::min(timeout, brief));
  if (!away_ && ReasonOf(response.status()) == v1::ERROR_REASON_WAIT_TIMEOUT && absl::Now() < deadline) {
    // No one should wait for a worker that itself waits for others to finish the last data.
    if (absl::Status status = Pause(); !status.ok()) return status;
    response = link_->AcquireLease(TimeLeft(deadline));
  }
  if (!response.ok()) return Explain(response.status());
  if (response->finished()) return std::nullopt;
  return Lease{response->lease(), std::exchange(away_, false)};
}

absl::Status ProgramWorker::CompleteLease(uint64_t lease_id, uint64_t steps, uint64_t batches) {
  return Explain(link_->CompleteLease(lease_id, steps, batches));
}

absl::Status ProgramWorker::Pause() {
  if (absl::Status status = client().Pause(); !status.ok()) return Explain(status);
  away_ = true;
  return absl::OkStatus();
}

absl::Status ProgramWorker::PassStep(uint64_t step, absl::Span<const TensorValues> tensors) {
  std::vector<TensorGradient> nothing;
  for (const TensorValues& tensor : tensors) nothing.push_back({tensor.tensor_id, {}, {}});
  const Future<PushResult> pushed = client().PushPull(step, 0, nothing, tensors);
  absl::Status status;
  if (!client().shard_map().tables().empty()) {
    status = client().PushRows(step, 0, {}, /*last_of_step=*/true).Get().status();
  }
  status.Update(pushed.Get().status());
  return status;
}

// While the others do not wait for this worker, each tensor advances at its own time. From this worker's first push on,
// the others wait for it at every tensor in turn, so it pushes without examples until all tensors are at the same step.
// A gradient pushed earlier would be its second one in the same step for some tensors, and would be dropped.
absl::StatusOr<uint64_t> ProgramWorker::CatchUp(absl::Span<const TensorValues> tensors) {
  const size_t declared = client().shard_map().tensors().size();
  if (tensors.size() != declared) {
    return absl::InvalidArgumentError(
        absl::StrCat("catch up: got ", tensors.size(), " tensors, want all ", declared, " of the job"));
  }
  absl::Status status = client().Pull(0, tensors).Get().status();
  if (!status.ok()) return Explain(status);
  if (!KeepsLockStep(options_.job.policy())) return first_step();
  uint64_t step = client().pulled_versions().first;
  const uint32_t quorum = options_.job.policy().sync().quorum();
  if (quorum != 0 && quorum != workers()) return step;
  for (int i = 0; i < kMaxStepsToCatchUp; ++i) {
    if (status = PassStep(step, tensors); !status.ok()) return Explain(status);
    ++step;
    if (client().pulled_versions() == std::make_pair(step, step)) break;
  }
  return step;
}

absl::StatusOr<v1::JobProgress> ProgramWorker::Report(v1::WorkerProgress progress,
                                                      std::optional<v1::Evaluation> evaluation) {
  for (uint64_t pushes : client().acknowledged_pushes()) progress.add_acknowledged_pushes(pushes);
  absl::StatusOr<v1::JobProgress> reported = link_->ReportProgress(std::move(progress), std::move(evaluation));
  if (!reported.ok()) return Explain(reported.status());
  return reported;
}

absl::Status ProgramWorker::Leave(const std::string& failure) {
  client().Shutdown("the worker leaves");
  client().WaitUntilIdle();
  return link_->Leave(failure);
}

}  // namespace ballast
