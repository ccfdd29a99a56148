// SPDX-License-Identifier: Apache-2.0
#include "server/coordinator/job_status.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace ballast {
namespace {

constexpr size_t kMaxNotices = 16;

}  // namespace

void JobStatus::Run(absl::Duration before, absl::Time now) {
  state_ = v1::JOB_STATE_RUNNING;
  running_since_ = now - before;
  Change();
}

void JobStatus::Finish(absl::Time now) {
  state_ = v1::JOB_STATE_FINISHED;
  ended_ = now;
  Change();
}

void JobStatus::Fail(std::string reason, const std::optional<Membership::Member>& at_fault, absl::Time now) {
  if (failed() || finished()) return;
  state_ = v1::JOB_STATE_FAILED;
  reason_ = std::move(reason);
  if (at_fault.has_value()) {
    *failure_.mutable_member() = ToProto(at_fault->id);
    failure_.set_process(at_fault->process);
    failure_.set_description(at_fault->description);
  }
  ended_ = now;
  Note(absl::StrCat("the job has failed: ", reason_));
}

void JobStatus::Note(std::string notice) {
  notices_.push_back(std::move(notice));
  if (notices_.size() > kMaxNotices) notices_.pop_front();
  ++notices_made_;
  Change();
}

std::vector<std::string> JobStatus::TakeNotices() {
  const uint64_t untaken = std::min<uint64_t>(notices_made_ - notices_taken_, notices_.size());
  notices_taken_ = notices_made_;
  return {notices_.end() - untaken, notices_.end()};
}

absl::Duration JobStatus::RunningFor(absl::Time now) const {
  if (running_since_ == absl::InfiniteFuture()) return absl::ZeroDuration();
  return std::min(now, ended_) - running_since_;
}

void JobStatus::Restore(const internal::v1::CoordinatorState& state, absl::Time now) {
  state_ = state.state();
  reason_ = state.reason();
  failure_ = state.failure();
  if (!gathering()) running_since_ = now - absl::Seconds(state.seconds());
  if (finished() || failed()) ended_ = now;
  workers_lost_ = state.workers_lost();
  servers_lost_ = state.servers_lost();
  notices_.assign(state.notices().begin(), state.notices().end());
  notices_made_ = notices_taken_ = state.notices_made();
}

}  // namespace ballast
