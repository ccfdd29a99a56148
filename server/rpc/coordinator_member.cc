// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/coordinator_member.h"

#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/program/this_process.h"
#include "common/program/version.h"
#include "common/rpc/grpc_status.h"
#include "common/status/error_reason.h"
#include "common/status/job_failure.h"
#include "grpcpp/channel.h"

namespace ballast {
namespace {

constexpr absl::Duration kAttempt = absl::Seconds(5);
// Lower limit for a call when the time to gather is nearly over.
constexpr absl::Duration kMinTimeout = absl::Seconds(1);

}  // namespace

CoordinatorMember::CoordinatorMember(Options options, Events events)
    : options_(std::move(options)),
      events_(std::move(events)),
      stub_(v1::CoordinatorService::NewStub(options_.channel)),
      thread_([this] { Run(); }) {}

CoordinatorMember::~CoordinatorMember() {
  v1::LeaveRequest request;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    if (calling_ != nullptr) calling_->TryCancel();
    *request.mutable_member() = joined_.member();
  }
  thread_.join();
  if (request.member().incarnation() == 0) return;
  request.set_job(events_.job());
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(1)));
  v1::LeaveResponse response;
  // Best effort: without it, the coordinator misses this server's heartbeats.
  stub_->Leave(&context, request, &response).IgnoreError();
}

v1::JobState CoordinatorMember::job_state() const {
  absl::MutexLock lock(&mutex_);
  return job_state_;
}

absl::Status CoordinatorMember::CheckGathered(const v1::HeartbeatResponse& response) const {
  const bool waits = response.state() == v1::JOB_STATE_GATHERING && options_.gather_timeout > absl::ZeroDuration();
  if (!waits || absl::Now() - started_ < options_.gather_timeout) return absl::OkStatus();
  return WithReason(
      v1::ERROR_REASON_WAIT_TIMEOUT,
      absl::DeadlineExceededError(absl::StrCat(
          "the job has not gathered within ", absl::FormatDuration(options_.gather_timeout), ": ", response.reason())));
}

bool CoordinatorMember::stopping() const {
  absl::MutexLock lock(&mutex_);
  return stopping_;
}

bool CoordinatorMember::Pause(absl::Duration duration) {
  absl::MutexLock lock(&mutex_);
  const auto woken = [this] {
    mutex_.AssertReaderHeld();
    return stopping_ || hastened_;
  };
  mutex_.AwaitWithTimeout(absl::Condition(&woken), duration);
  hastened_ = false;
  return !stopping_;
}

void CoordinatorMember::HeartbeatNow() {
  absl::MutexLock lock(&mutex_);
  hastened_ = true;
}

bool CoordinatorMember::UpdateIdentity(const v1::Member& member) {
  {
    absl::MutexLock lock(&mutex_);
    const bool same =
        joined_.member().role() == member.role() && joined_.member().incarnation() == member.incarnation();
    if (same) return false;
    *joined_.mutable_member() = member;
  }
  events_.on_part(member);
  return true;
}

// Retries a call on transient failures until `timeout`.
absl::Status CoordinatorMember::Call(absl::FunctionRef<grpc::Status(grpc::ClientContext*)> call, absl::string_view what,
                                     absl::Duration timeout) {
  const absl::Time start = absl::Now();
  while (true) {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    const absl::Duration left = start + timeout - absl::Now();
    context.set_deadline(absl::ToChronoTime(absl::Now() + std::clamp(left, absl::Milliseconds(1), kAttempt)));
    {
      absl::MutexLock lock(&mutex_);
      if (stopping_) return absl::CancelledError("the server is shutting down");
      calling_ = &context;
    }
    const absl::Status status = FromGrpcStatus(call(&context));
    {
      absl::MutexLock lock(&mutex_);
      calling_ = nullptr;
    }
    // Transient failures: the coordinator may be busy, or its disk full for a while.
    const bool transient =
        absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) || absl::IsResourceExhausted(status);
    if (!transient) return status;
    const absl::Duration elapsed = absl::Now() - start;
    if (elapsed >= timeout) {
      return WithReason(
          v1::ERROR_REASON_UNREACHABLE,
          absl::UnavailableError(absl::StrCat("coordinator at ", options_.coordinator, ": timed out after ",
                                              absl::FormatDuration(absl::Floor(elapsed, absl::Seconds(1))),
                                              " waiting for a response to ", what, ": ", status.message())),
          {{"address", options_.coordinator}});
    }
    if (!Pause(absl::Milliseconds(200))) return absl::CancelledError("the server is shutting down");
  }
}

absl::Status CoordinatorMember::FailToGather(absl::string_view why, const absl::Status& status) const {
  return WithReason(v1::ERROR_REASON_UNREACHABLE,
                    absl::DeadlineExceededError(absl::StrCat("the job has not gathered within ",
                                                             absl::FormatDuration(options_.gather_timeout), ", ", why,
                                                             ": ", status.message())));
}

absl::Status CoordinatorMember::Join() {
  v1::JoinRequest request;
  request.set_protocol_version(kProtocolVersion);
  request.set_version(kVersion);
  request.set_role(v1::ROLE_SERVER);
  request.set_rank(options_.rank);
  request.set_address(options_.address);
  request.set_control_address(options_.control_address);
  request.set_description(DescribeThisProcess());
  request.set_process(getpid());
  request.set_with_standby(options_.with_standby);
  v1::JoinResponse response;
  const bool gathers = options_.gather_timeout > absl::ZeroDuration();
  absl::Status status = Call([&](grpc::ClientContext* context) { return stub_->Join(context, request, &response); },
                             "a join request", gathers ? options_.gather_timeout : options_.patience);
  if (gathers && absl::IsUnavailable(status)) return FailToGather("server 0 does not answer", status);
  if (!status.ok()) return status;
  {
    absl::MutexLock lock(&mutex_);
    joined_ = response;
  }
  if (options_.with_standby && response.servers() != options_.servers) {
    return WithReason(
        v1::ERROR_REASON_SERVERS_DIFFER,
        absl::FailedPreconditionError(absl::StrCat("coordinator at ", options_.coordinator, " has --servers ",
                                                   response.servers(), ", got --servers ", options_.servers,
                                                   ": with --with_standby want the same, because ranks depend on it")));
  }
  events_.on_part(response.member());
  return absl::OkStatus();
}

absl::Status CoordinatorMember::BeatUntilStopped() {
  v1::HeartbeatRequest request;
  absl::Duration usual;
  uint32_t servers = 0;
  {
    absl::MutexLock lock(&mutex_);
    *request.mutable_member() = joined_.member();
    usual = absl::Milliseconds(std::max(10u, joined_.heartbeat_interval_ms()));
    servers = joined_.servers();
  }
  bool failed = false;
  uint64_t captured = 0;
  absl::Duration interval = usual;
  while (Pause(interval)) {
    v1::HeartbeatResponse response;
    request.set_job(events_.job());
    *request.mutable_checkpoint_part() = events_.checkpoint_part();
    const ReplicationReport news = events_.pair_news();
    *request.mutable_standby() = news.standby;
    request.set_server_lost(news.server_lost);
    const bool gathers = options_.gather_timeout > absl::ZeroDuration() && job_state() == v1::JOB_STATE_GATHERING;
    const absl::Duration gather_time = std::max(started_ + options_.gather_timeout - absl::Now(), kMinTimeout);
    absl::Status status =
        Call([&](grpc::ClientContext* context) { return stub_->Heartbeat(context, request, &response); }, "a heartbeat",
             gathers ? gather_time : options_.patience);
    if (gathers && absl::IsUnavailable(status)) return FailToGather("server 0 was lost", status);
    if (!status.ok()) return status;
    if (absl::Status gathered = CheckGathered(response); !gathered.ok()) return gathered;
    {
      absl::MutexLock lock(&mutex_);
      job_state_ = response.state();
    }
    events_.on_heard(news);
    if (response.has_promoted() && UpdateIdentity(response.promoted())) *request.mutable_member() = response.promoted();
    if (request.member().role() == v1::ROLE_SERVER) events_.on_standby(response.standby());
    if (response.state() == v1::JOB_STATE_FAILED && !failed) {
      events_.on_job_failed(JobFailedError(response.reason(), response.failure()));
    }
    failed = response.state() == v1::JOB_STATE_FAILED;
    interval = response.interval_ms() > 0 ? absl::Milliseconds(response.interval_ms()) : usual;
    if (response.capture_checkpoint_id() > 0 && response.capture_checkpoint_id() != captured) {
      captured = response.capture_checkpoint_id();
      events_.on_capture(captured, servers);
    }
    if (response.absent_size() > 0) events_.on_absent({response.absent().begin(), response.absent().end()});
  }
  return absl::OkStatus();
}

void CoordinatorMember::Run() {
  while (true) {
    if (absl::Status joined = Join(); !joined.ok()) {
      if (!stopping()) events_.on_fatal(joined);
      return;
    }
    const absl::Status status = BeatUntilStopped();
    if (status.ok() || stopping()) return;
    if (ReasonOf(status) != v1::ERROR_REASON_MEMBER_LOST) return events_.on_fatal(status);
    // A coordinator restarted before there was a job has forgotten its members: join again. With standbys the whole
    // server restarts instead.
    if (options_.with_standby || job_state() != v1::JOB_STATE_GATHERING) return events_.on_displaced(status);
  }
}

}  // namespace ballast
