// SPDX-License-Identifier: Apache-2.0
#include "client/coordinator_link.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/job/job_config.h"
#include "common/program/this_process.h"
#include "common/status/error_reason.h"

namespace ballast {
namespace {

// Timeout for one response, not counting a requested wait.
constexpr absl::Duration kAttemptTimeout = absl::Seconds(10);
constexpr absl::Duration kRetryTimeout = absl::Seconds(10);
// Pause between attempts to join under a rank that another member still has.
constexpr absl::Duration kJoinPause = absl::Milliseconds(250);
// Short, because the coordinator may already be lost.
constexpr absl::Duration kLeaveTimeout = absl::Seconds(3);
// Wait of one AcquireLease call; a longer wait takes several calls.
constexpr absl::Duration kMaxPoll = absl::Seconds(10);
// Timeout for connecting to a control port, which may be unreachable.
constexpr absl::Duration kControlTimeout = absl::Seconds(2);
// Pause between polls if the server returns nothing before the wait is over.
constexpr absl::Duration kEarlyPollPause = absl::Milliseconds(100);

using Async = v1::CoordinatorService::StubInterface::async_interface;

}  // namespace

absl::StatusOr<std::unique_ptr<CoordinatorLink>> CoordinatorLink::Connect(const std::string& address,
                                                                          absl::Duration timeout,
                                                                          const Credentials& credentials,
                                                                          const std::string& job) {
  if (absl::Status status = credentials.CheckTarget(address); !status.ok()) return status;
  auto link = std::unique_ptr<CoordinatorLink>(new CoordinatorLink(address, credentials, job));
  auto response = link->Call<v1::GetProgressResponse>(&link->calls_, link->Within("connect", timeout),
                                                      v1::GetProgressRequest(), &Async::GetProgress);
  if (absl::Status status = response.status(); !status.ok()) return status;
  return link;
}

CoordinatorLink::CoordinatorLink(const std::string& address, const Credentials& credentials, const std::string& job)
    : address_(address),
      credentials_(credentials),
      job_(job),
      home_channel_([this] { return OpenChannel(address_, credentials_); }),
      home_(v1::CoordinatorService::NewStub(home_channel_.channel())),
      tracker_(name()) {}

std::string CoordinatorLink::name() const { return absl::StrCat("coordinator at ", address_); }

std::shared_ptr<v1::CoordinatorService::Stub> CoordinatorLink::stub() const {
  absl::MutexLock lock(&mutex_);
  return control_ != nullptr ? control_ : home_;
}

void CoordinatorLink::Follow(const ShardMap& map) {
  // The coordinator is in the process of shard 0, unless a standby has taken over the shard.
  if (map.controls().empty() || map.controls()[0].empty() || map.shards()[0] != address_) return;
  const std::string& address = map.controls()[0];
  {
    absl::MutexLock lock(&mutex_);
    if (address == control_address_) return;
    control_address_ = address;
  }
  if (!credentials_.CheckTarget(address).ok()) return;
  const std::shared_ptr<grpc::Channel> channel = OpenChannel(address, credentials_);
  if (!channel->WaitForConnected(absl::ToChronoTime(absl::Now() + kControlTimeout))) return;
  absl::MutexLock lock(&mutex_);
  control_ = v1::CoordinatorService::NewStub(channel);
}

void CoordinatorLink::ReturnHome() {
  const bool renewed = home_channel_.Renew();
  absl::MutexLock lock(&mutex_);
  if (renewed) home_ = v1::CoordinatorService::NewStub(home_channel_.channel());
  control_ = nullptr;
  control_address_.clear();
}

template <typename Response, typename Request>
absl::StatusOr<Response> CoordinatorLink::Call(CallGroup* group, CallOptions options, Request request,
                                               Method<Request, Response> method) {
  // JoinRequest contains the whole job file instead; PlaceTensors may name its job itself.
  if constexpr (requires { request.set_job(job_); }) {
    if (request.job().empty()) request.set_job(job_);
  }
  const auto begin = [this, method](grpc::ClientContext* context, const Request* ask, Response* response,
                                    std::function<void(grpc::Status)> end) {
    const std::shared_ptr<v1::CoordinatorService::Stub> present = stub();
    (present->async()->*method)(context, ask, response,
                                [this, present, end = std::move(end)](const grpc::Status& status) {
                                  // A restarted process may have another control port, so the next attempt uses the
                                  // original address.
                                  if (status.error_code() == grpc::StatusCode::UNAVAILABLE) ReturnHome();
                                  end(status);
                                });
  };
  return group->Ask<Response>(std::move(options), std::move(request), begin).Get();
}

CallOptions CoordinatorLink::Within(const char* call, absl::Duration timeout) const {
  return {[name = absl::StrCat(name(), ": ", call)] { return name; }, timeout, timeout, timeout};
}

CallOptions CoordinatorLink::Options(const char* call, absl::Duration wait) const {
  absl::MutexLock lock(&mutex_);
  const absl::Duration retry = std::max(kRetryTimeout, tracker_.return_timeout());
  return {[name = absl::StrCat(name(), ": ", call)] { return name; }, wait + kAttemptTimeout, retry, wait + retry};
}

v1::Member CoordinatorLink::member() const {
  absl::MutexLock lock(&mutex_);
  return joined_.member();
}

absl::StatusOr<v1::JoinResponse> CoordinatorLink::Join(v1::JoinRequest request, absl::Duration timeout) {
  request.set_protocol_version(kProtocolVersion);
  request.set_version(kVersion);
  {
    absl::MutexLock lock(&mutex_);
    const v1::Durability& durability = request.job().durability();
    if (OutlivesAServer(durability)) tracker_.set_return_timeout(ReturnTime(durability));
  }
  const absl::Time deadline = absl::Now() + timeout;
  absl::StatusOr<v1::JoinResponse> response;
  // The attempt retries by itself while no response comes, and CancelCalls ends it.
  const absl::Status status = loop_.Call(
      [&](grpc::ClientContext*) {
        response = Call<v1::JoinResponse>(&calls_, Options("join"), request, &Async::Join);
        return response.status();
      },
      kJoinPause,
      [&](const absl::Status& error) { return absl::IsAlreadyExists(error) ? deadline : absl::InfinitePast(); });
  if (!status.ok()) return status;
  absl::MutexLock lock(&mutex_);
  joined_ = *response;
  tracker_.Begin(absl::Milliseconds(std::max(response->member_ttl_ms(), 1u)), absl::Now());
  return response;
}

void CoordinatorLink::StartHeartbeats(std::function<void(const JobCondition&)> on_change) {
  loop_.Start([this, on_change = std::move(on_change)] { return Beat(on_change); });
}

std::optional<absl::Duration> CoordinatorLink::Beat(const std::function<void(const JobCondition&)>& on_change) {
  v1::JoinResponse joined;
  {
    absl::MutexLock lock(&mutex_);
    joined = joined_;
  }
  v1::HeartbeatRequest request;
  request.set_job(job_);
  *request.mutable_member() = joined.member();
  const absl::Duration ttl = absl::Milliseconds(std::max(joined.member_ttl_ms(), 1u));
  v1::HeartbeatResponse response;
  const absl::Status status = loop_.Call(
      [&](grpc::ClientContext* context) {
        context->set_deadline(absl::ToChronoTime(absl::Now() + ttl));
        const std::shared_ptr<v1::CoordinatorService::Stub> present = stub();
        absl::Status ended =
            FromAttempt(present->Heartbeat(context, request, &response), absl::StrCat(name(), ": heartbeat"));
        if (!ended.ok()) ReturnHome();
        return ended;
      },
      HeartbeatInterval(joined, {}),
      [this](const absl::Status& error) {
        absl::MutexLock lock(&mutex_);
        return tracker_.LostAt(error);
      });
  if (loop_.stopping()) return std::nullopt;
  bool changed;
  JobCondition now;
  {
    absl::MutexLock lock(&mutex_);
    changed = tracker_.OnHeartbeat(status.ok() ? absl::StatusOr<v1::HeartbeatResponse>(response) : status, absl::Now());
    now = tracker_.condition();
  }
  if (changed && on_change) on_change(now);
  if (!status.ok()) return std::nullopt;
  return HeartbeatInterval(joined, response);
}

JobCondition CoordinatorLink::condition() const {
  absl::MutexLock lock(&mutex_);
  return tracker_.condition();
}

absl::Status CoordinatorLink::Leave(const std::string& failure, bool worker_local) {
  loop_.Stop();
  v1::LeaveRequest request;
  *request.mutable_member() = member();
  request.set_failure(failure);
  request.set_worker_local(worker_local);
  return Call<v1::LeaveResponse>(&leaving_, Within("leave", kLeaveTimeout), std::move(request), &Async::Leave).status();
}

absl::StatusOr<v1::AcquireLeaseResponse> CoordinatorLink::AcquireLease(absl::Duration timeout,
                                                                       const std::optional<v1::StreamSpan>& found) {
  absl::Time now = absl::Now();
  const absl::Time deadline = now + timeout;
  v1::AcquireLeaseRequest request;
  *request.mutable_member() = member();
  if (found.has_value()) *request.mutable_found() = *found;
  while (true) {
    const absl::Duration wait = std::clamp(deadline - now, absl::Milliseconds(1), kMaxPoll);
    request.set_wait_ms(absl::ToInt64Milliseconds(wait));
    {
      absl::MutexLock lock(&mutex_);
      request.mutable_held_leases()->Assign(held_.begin(), held_.end());
      request.set_epochs_done(epochs_done_);
    }
    absl::StatusOr<v1::AcquireLeaseResponse> response =
        Call<v1::AcquireLeaseResponse>(&calls_, Options("acquire lease", wait), request, &Async::AcquireLease);
    if (response.ok()) {
      absl::MutexLock lock(&mutex_);
      if (response->has_lease()) held_.insert(response->lease().id());
      if (response->epochs_done() > 0) epochs_done_ = response->epochs_done();
    }
    if (!response.ok() || response->finished() || response->has_lease() || response->epochs_done() > 0 ||
        response->has_stream_position()) {
      return response;
    }
    const absl::Duration waited = absl::Now() - now;
    now += waited;
    if (now >= deadline) {
      return WithReason(v1::ERROR_REASON_WAIT_TIMEOUT,
                        absl::DeadlineExceededError(absl::StrCat(name(), ": acquire lease: timed out after ",
                                                                 absl::FormatDuration(timeout), " waiting for ",
                                                                 response->waiting_for())));
    }
    if (waited < wait / 2) calls_.WaitForShutdown(kEarlyPollPause);
  }
}

uint32_t CoordinatorLink::epochs_done() const {
  absl::MutexLock lock(&mutex_);
  return epochs_done_;
}

absl::Status CoordinatorLink::CompleteLease(uint64_t lease_id, uint64_t steps, uint64_t batches) {
  v1::CompleteLeaseRequest request;
  *request.mutable_member() = member();
  request.set_lease_id(lease_id);
  request.set_steps(steps);
  request.set_batches(batches);
  absl::Status status =
      Call<v1::CompleteLeaseResponse>(&calls_, Options("complete lease"), std::move(request), &Async::CompleteLease)
          .status();
  if (status.ok()) Release(lease_id);
  return status;
}

void CoordinatorLink::Release(uint64_t lease_id) {
  absl::MutexLock lock(&mutex_);
  held_.erase(lease_id);
}

absl::StatusOr<v1::JobProgress> CoordinatorLink::ReportProgress(
    v1::WorkerProgress progress, std::optional<v1::Evaluation> evaluation,
    const std::optional<v1::ReportProgressRequest::CompletedLease>& completed) {
  v1::ReportProgressRequest request;
  *request.mutable_member() = member();
  *request.mutable_progress() = std::move(progress);
  if (evaluation.has_value()) *request.mutable_evaluation() = *std::move(evaluation);
  if (completed.has_value()) *request.mutable_completed_lease() = *completed;
  absl::StatusOr<v1::ReportProgressResponse> response =
      Call<v1::ReportProgressResponse>(&calls_, Options("report progress"), std::move(request), &Async::ReportProgress);
  if (!response.ok()) return response.status();
  if (completed.has_value() && response->lease_completed()) {
    Release(completed->lease_id());
  } else if (completed.has_value()) {
    absl::Status status = CompleteLease(completed->lease_id(), completed->steps(), completed->batches());
    if (!status.ok()) return status;
  }
  return std::move(*response->mutable_progress());
}

absl::StatusOr<v1::GetProgressResponse> CoordinatorLink::GetProgress() {
  return Call<v1::GetProgressResponse>(&calls_, Options("get progress"), v1::GetProgressRequest(), &Async::GetProgress);
}

absl::StatusOr<ShardMap> CoordinatorLink::PlaceTensors(const std::string& job, absl::Span<const v1::TensorSpec> specs,
                                                       absl::Span<const v1::TableSpec> tables, absl::Duration timeout) {
  v1::PlaceTensorsRequest request;
  request.set_job(job);
  for (const v1::TensorSpec& spec : specs) *request.add_tensors() = spec;
  for (const v1::TableSpec& spec : tables) *request.add_tables() = spec;
  absl::StatusOr<v1::PlaceTensorsResponse> response = Call<v1::PlaceTensorsResponse>(
      &calls_, Within("place tensors", timeout), std::move(request), &Async::PlaceTensors);
  if (!response.ok()) return response.status();
  absl::StatusOr<ShardMap> map = ShardMap::FromProto(response->map());
  if (map.ok()) Follow(*map);
  return map;
}

absl::StatusOr<ShardMap> CoordinatorLink::GetShardMap() {
  absl::StatusOr<v1::GetShardMapResponse> response =
      Call<v1::GetShardMapResponse>(&calls_, Options("get shard map"), v1::GetShardMapRequest(), &Async::GetShardMap);
  if (!response.ok()) return response.status();
  return ShardMap::FromProto(response->map());
}

absl::StatusOr<ShardMap> CoordinatorLink::AwaitShardMap(uint64_t newer_than, absl::Duration wait) {
  v1::GetShardMapRequest request;
  request.set_newer_than(newer_than);
  request.set_wait_ms(absl::ToInt64Milliseconds(wait));
  CallOptions once = Within("await shard map", wait + kAttemptTimeout);
  once.retry_timeout = absl::ZeroDuration();
  absl::StatusOr<v1::GetShardMapResponse> response =
      Call<v1::GetShardMapResponse>(&calls_, std::move(once), std::move(request), &Async::GetShardMap);
  if (!response.ok()) return response.status();
  return ShardMap::FromProto(response->map());
}

void CoordinatorLink::CancelCalls(const std::string& reason) { calls_.Shutdown(reason); }

}  // namespace ballast
