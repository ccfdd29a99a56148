// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/coordinator_member.h"

#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/program/this_process.h"
#include "common/status/error_reason.h"
#include "common/status/job_failure.h"
#include "grpcpp/channel.h"

namespace ballast {
namespace {

constexpr absl::Duration kAttempt = absl::Seconds(5);
constexpr absl::Duration kRetryPause = absl::Milliseconds(200);
constexpr absl::Duration kSavePause = absl::Milliseconds(50);
// Lower limit for a call when the time to gather is nearly over.
constexpr absl::Duration kMinTimeout = absl::Seconds(1);

}  // namespace

CoordinatorMember::CoordinatorMember(Options options, Events events)
    : options_(std::move(options)), events_(std::move(events)), channel_(options_.open_channel) {
  loop_.Start([this] { return Step(); });
}

CoordinatorMember::~CoordinatorMember() {
  loop_.Stop();
  v1::LeaveRequest request;
  {
    absl::MutexLock lock(&mutex_);
    *request.mutable_member() = joined_.member();
  }
  if (request.member().incarnation() == 0) return;
  request.set_job(events_.job());
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(1)));
  v1::LeaveResponse response;
  // Best effort: without it, the coordinator misses this server's heartbeats.
  stub()->Leave(&context, request, &response).IgnoreError();
}

std::string CoordinatorMember::SaveCheckpoint(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  v1::SaveCheckpointRequest request;
  request.set_stop(true);
  request.set_unless_outlived(true);
  request.set_job(events_.job());
  v1::SaveCheckpointResponse response;
  const auto attempt = [&](grpc::ClientContext* context) -> absl::Status {
    context->set_deadline(absl::ToChronoTime(absl::Now() + kAttempt));
    const grpc::Status status = stub()->SaveCheckpoint(context, request, &response);
    if (!status.ok()) return FromAttempt(status);
    request.set_id(response.id());
    if (!response.pending()) return absl::OkStatus();
    return WithReason(v1::ERROR_REASON_WAIT_TIMEOUT,
                      absl::DeadlineExceededError(absl::StrCat("timed out waiting for ", response.waiting_for())));
  };
  // Its own loop: heartbeats go on meanwhile. A server 0 that has ended refuses connections at once.
  const absl::Status status = MemberLoop().Call(attempt, kSavePause, [&](const absl::Status& error) {
    return request.id() > 0 && absl::IsDeadlineExceeded(error) ? deadline : absl::InfinitePast();
  });
  // Server 0 may end as soon as the checkpoint is saved.
  if (!status.ok()) return absl::StrCat("server 0 did not say that a checkpoint was saved: ", status.message());
  if (response.id() == 0) return "";
  if (!response.failure().empty()) return absl::StrCat("no checkpoint was saved: ", response.failure());
  return absl::StrCat("checkpoint ", response.id(), " saved at step ", response.step(), ", epoch ", response.epoch());
}

v1::JobState CoordinatorMember::job_state() const {
  absl::MutexLock lock(&mutex_);
  return job_state_;
}

absl::Status CoordinatorMember::Call(absl::FunctionRef<grpc::Status(grpc::ClientContext*)> call, absl::string_view what,
                                     absl::Duration timeout) {
  const absl::Time start = absl::Now(), last = start + timeout;
  const absl::Status status = loop_.Call(
      [&](grpc::ClientContext* context) {
        const absl::Time now = absl::Now();
        context->set_deadline(absl::ToChronoTime(now + std::clamp(last - now, absl::Milliseconds(1), kAttempt)));
        const absl::Status ended = FromAttempt(call(context));
        if (absl::IsUnavailable(ended)) channel_.Renew();
        return ended;
      },
      kRetryPause, [&](const absl::Status& error) { return IsUnresponsive(error) ? last : absl::InfinitePast(); });
  if (!IsUnresponsive(status)) return status;
  return WithReason(
      v1::ERROR_REASON_UNREACHABLE,
      absl::UnavailableError(absl::StrCat("coordinator at ", options_.coordinator, ": timed out after ",
                                          absl::FormatDuration(absl::Floor(absl::Now() - start, absl::Seconds(1))),
                                          " waiting for a response to ", what, ": ", status.message())),
      {{"address", options_.coordinator}});
}

absl::Status CoordinatorMember::FailToGather(absl::string_view why, const absl::Status& status) const {
  return WithReason(v1::ERROR_REASON_UNREACHABLE,
                    absl::DeadlineExceededError(absl::StrCat("the job has not gathered within ",
                                                             absl::FormatDuration(options_.gather_timeout), ", ", why,
                                                             ": ", status.message())));
}

absl::StatusOr<absl::Duration> CoordinatorMember::Join() {
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
  absl::Status status = Call([&](grpc::ClientContext* context) { return stub()->Join(context, request, &response); },
                             "a join request", gathers ? options_.gather_timeout : options_.coordinator_timeout);
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
  return HeartbeatInterval(response, {});
}

absl::StatusOr<absl::Duration> CoordinatorMember::Beat() {
  v1::JoinResponse joined;
  v1::JobState last;
  {
    absl::MutexLock lock(&mutex_);
    joined = joined_;
    last = job_state_;
  }
  v1::HeartbeatRequest request;
  request.set_job(events_.job());
  *request.mutable_member() = joined.member();
  *request.mutable_checkpoint_part() = events_.checkpoint_part();
  for (v1::CausedWait& wait : events_.caused_waits()) *request.add_caused_waits() = std::move(wait);
  const ReplicationReport news = events_.pair_news();
  *request.mutable_standby() = news.standby;
  request.set_server_lost(news.server_lost);
  const bool limited = options_.gather_timeout > absl::ZeroDuration();
  const bool gathers = limited && last == v1::JOB_STATE_GATHERING;
  const absl::Duration gather_time = std::max(started_ + options_.gather_timeout - absl::Now(), kMinTimeout);
  v1::HeartbeatResponse response;
  absl::Status status =
      Call([&](grpc::ClientContext* context) { return stub()->Heartbeat(context, request, &response); }, "a heartbeat",
           gathers ? gather_time : std::max(options_.coordinator_timeout, events_.return_time()));
  if (gathers && absl::IsUnavailable(status)) return FailToGather("server 0 was lost", status);
  if (!status.ok()) return status;
  if (limited && response.state() == v1::JOB_STATE_GATHERING && absl::Now() - started_ >= options_.gather_timeout) {
    return WithReason(v1::ERROR_REASON_WAIT_TIMEOUT,
                      absl::DeadlineExceededError(absl::StrCat("the job has not gathered within ",
                                                               absl::FormatDuration(options_.gather_timeout), ": ",
                                                               response.reason())));
  }
  v1::Member& member = *joined.mutable_member();
  const bool promoted = response.has_promoted() && (response.promoted().role() != member.role() ||
                                                    response.promoted().incarnation() != member.incarnation());
  if (promoted) member = response.promoted();
  {
    absl::MutexLock lock(&mutex_);
    job_state_ = response.state();
    *joined_.mutable_member() = member;
  }
  events_.on_state(response.state());
  events_.on_heard(news);
  if (promoted) events_.on_part(member);
  if (member.role() == v1::ROLE_SERVER) events_.on_standby(response.standby());
  if (response.state() == v1::JOB_STATE_FAILED && last != v1::JOB_STATE_FAILED) {
    events_.on_job_failed(JobFailedError(response.reason(), response.failure()));
  }
  if (response.capture_checkpoint_id() > 0 && response.capture_checkpoint_id() != captured_) {
    captured_ = response.capture_checkpoint_id();
    events_.on_capture(captured_, joined.servers());
  }
  if (response.absent_size() > 0) events_.on_absent({response.absent().begin(), response.absent().end()});
  return HeartbeatInterval(joined, response);
}

std::optional<absl::Duration> CoordinatorMember::Step() {
  bool joined;
  {
    absl::MutexLock lock(&mutex_);
    joined = joined_.has_member();
  }
  const absl::StatusOr<absl::Duration> pause = joined ? Beat() : Join();
  if (pause.ok()) return *pause;
  if (loop_.stopping()) return std::nullopt;
  if (!joined || ReasonOf(pause.status()) != v1::ERROR_REASON_MEMBER_LOST) {
    events_.on_fatal(pause.status());
  } else if (options_.with_standby || job_state() != v1::JOB_STATE_GATHERING) {
    events_.on_displaced(pause.status());
  } else {
    // A coordinator restarted before there was a job has forgotten its members: join again. With standbys the whole
    // server restarts instead.
    absl::MutexLock lock(&mutex_);
    joined_.Clear();
    return absl::ZeroDuration();
  }
  return std::nullopt;
}

}  // namespace ballast
