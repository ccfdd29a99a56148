// SPDX-License-Identifier: Apache-2.0
#include "server/coordinator/checkpoint_control.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/job/job_config.h"
#include "common/program/this_process.h"
#include "common/storage/checkpoint_folder.h"

namespace ballast {

void CheckpointPlan::Enter(Phase phase, absl::Time now) {
  phase_ = phase;
  entered_ = now;
  done_.assign(options_.servers, false);
}

bool CheckpointPlan::All() const { return std::find(done_.begin(), done_.end(), false) == done_.end(); }

uint64_t CheckpointPlan::Request() {
  requested_ = std::max(requested_, next_id_ + (phase_ < Phase::kWriting ? 0 : 1));
  return requested_;
}

void CheckpointPlan::OnHeartbeat(uint32_t server, absl::Time now) {
  if (phase_ == Phase::kIdle && (now >= due_ || requested_ >= next_id_)) Enter(Phase::kAnnounced, now);
  if (phase_ != Phase::kAnnounced || server >= done_.size()) return;
  done_[server] = true;
  if (All()) Enter(Phase::kDraining, now);
}

void CheckpointPlan::Capture(internal::v1::CheckpointManifest manifest, absl::Time now) {
  if (phase_ != Phase::kDraining) return;
  manifest_ = std::move(manifest);
  manifest_.set_id(next_id_);
  manifest_.clear_files();
  for (uint32_t shard = 0; shard < options_.servers; ++shard) {
    manifest_.add_files()->set_name(CheckpointFolder::ShardFileName(next_id_, shard, options_.servers));
  }
  capturing_ = now;
  Enter(Phase::kCapturing, now);
}

std::optional<std::string> CheckpointPlan::Report(uint32_t server, const v1::CheckpointPart& part, absl::Time now) {
  const bool ours = part.id() == next_id_ && server < done_.size();
  if (!ours || (phase_ != Phase::kCapturing && phase_ != Phase::kWriting)) return std::nullopt;
  if (part.stage() == v1::CheckpointPart::STAGE_FAILED) return absl::StrCat("server ", server, ": ", part.failure());
  if (part.stage() == v1::CheckpointPart::STAGE_WRITTEN) {
    internal::v1::CheckpointManifest::File* file = manifest_.mutable_files(server);
    file->set_bytes(part.bytes());
    file->set_checksum(part.checksum());
  }
  if (phase_ == Phase::kCapturing) {
    done_[server] = true;
    if (!All()) return std::nullopt;
    captured_ = now;
    Enter(Phase::kWriting, now);
  }
  // A small shard may be written before the last one is captured.
  for (uint32_t shard = 0; shard < options_.servers; ++shard) done_[shard] = manifest_.files(shard).bytes() > 0;
  if (All()) Enter(Phase::kCommitting, now);
  return std::nullopt;
}

std::string CheckpointPlan::WaitedFor() const {
  std::vector<std::string> servers;
  for (uint32_t server = 0; server < done_.size(); ++server) {
    if (!done_[server]) servers.push_back(absl::StrCat("server ", server));
  }
  return absl::StrJoin(servers, ", ");
}

std::optional<std::string> CheckpointPlan::Overdue(absl::Time now) const {
  if (phase_ == Phase::kIdle || phase_ == Phase::kCommitting) return std::nullopt;
  const absl::Duration most = phase_ == Phase::kWriting ? kMaxWriting : kMaxStopped;
  if (now - entered_ < most) return std::nullopt;
  if (phase_ == Phase::kDraining) {
    return absl::StrCat("workers did not finish the data they held within ", absl::FormatDuration(most));
  }
  return absl::StrCat(WaitedFor(), " did not finish its part within ", absl::FormatDuration(most));
}

void CheckpointPlan::End(absl::Time now) {
  if (phase_ == Phase::kIdle) return;
  ++next_id_;
  due_ = now + options_.interval;
  manifest_.Clear();
  Enter(Phase::kIdle, now);
}

std::string CheckpointControl::Obstacle() const {
  if (status_.failed()) return absl::StrCat("the job has failed: ", status_.reason());
  const bool programs = !workers_.leases_data();
  // Programs need not join.
  if (status_.gathering() && !(programs && servers_.placed())) return "the job has not begun";
  if (!programs && !TakesCheckpoints(workers_.durability())) return "the job has durability none";
  if (!options_.first_checkpoint.has_value()) return "server 0 has no --checkpoint_dir";
  // The shards would save an empty checkpoint, which a resume would take for the newest.
  if (programs) return servers_.placed() ? "" : "no program has placed a tensor or table yet";
  return workers_.model_declared() ? "" : "no worker has declared the model yet";
}

absl::Duration CheckpointControl::Interval() const {
  return workers_.leases_data() ? CheckpointInterval(workers_.durability()) : absl::InfiniteDuration();
}

absl::Duration CheckpointControl::interval() const {
  const bool takes = options_.first_checkpoint.has_value() && TakesCheckpoints(workers_.durability());
  return takes && workers_.leases_data() ? Interval() : absl::ZeroDuration();
}

void CheckpointControl::Update(absl::Time now) {
  if (!Obstacle().empty()) {
    if (!plan_.has_value() || (plan_->phase() == CheckpointPlan::Phase::kIdle && stop_id_ == 0)) return;
    Release();
    return plan_->End(now);
  }
  if (!plan_.has_value()) {
    plan_.emplace(CheckpointPlan::Options{Interval(), options_.servers, *options_.first_checkpoint}, now);
  }
  if (status_.finished() && final_id_ == 0) final_id_ = plan_->Request();
  if (held_until_ <= now) Release();
}

void CheckpointControl::Release() {
  stop_id_ = 0;
  held_until_ = absl::InfiniteFuture();
  workers_.ReleaseData();
  status_.Release();
}

internal::v1::CheckpointManifest CheckpointControl::MakeManifest(absl::Time now) {
  internal::v1::CheckpointManifest manifest;
  manifest.set_version(kVersion);
  manifest.set_created_unix_ms(absl::ToUnixMillis(now));
  workers_.FillManifest(manifest);
  *manifest.mutable_map() = servers_.placed_map().ToProto();
  manifest.mutable_incarnations()->Resize(options_.workers, 0);
  for (const auto& [key, member] : members_.members()) {
    if (member.id.role == MemberRole::kWorker) manifest.set_incarnations(member.id.rank, member.id.incarnation);
  }
  manifest.set_seconds(absl::ToDoubleSeconds(status_.RunningFor(now)));
  current_.Clear();
  current_.set_id(plan_->id());
  for (const auto& worker : manifest.progress().workers()) {
    current_.set_step(std::max(current_.step(), worker.lease_steps()));
  }
  current_.set_epoch(workers_.epochs_begun());
  return manifest;
}

void CheckpointControl::End(const std::string& failure, absl::Time now) {
  if (!failure.empty()) {
    const bool next = status_.running() && stop_id_ != plan_->id() && workers_.leases_data();
    status_.Note(absl::StrCat("checkpoint ", plan_->id(), " was abandoned: ", failure,
                              next ? absl::StrCat("; the next one is due in ", absl::FormatDuration(Interval())) : ""));
    current_.Clear();
    current_.set_id(plan_->id());
    current_.set_failure(failure);
    Release();
  } else {
    newest_.set_unix_seconds(absl::ToDoubleSeconds(now - absl::UnixEpoch()));
    newest_.set_seconds(absl::ToDoubleSeconds(now - plan_->capturing()));
    newest_.set_stall_seconds(absl::ToDoubleSeconds(plan_->captured() - plan_->capturing()));
  }
  if (failure.empty() && plan_->requested(plan_->id())) {
    const std::string position = absl::StrCat(" at step ", current_.step(), ", epoch ", current_.epoch());
    status_.Note(absl::StrCat("checkpoint ", current_.id(), " saved", workers_.leases_data() ? position : ""));
  }
  last_ = current_;
  plan_->End(now);
}

CheckpointControl::Order CheckpointControl::OnHeartbeat(uint32_t server, const v1::CheckpointPart& part,
                                                        absl::Time now) {
  if (!plan_.has_value() || !Obstacle().empty()) return {};
  // A finished job takes one more checkpoint.
  if (status_.finished() && plan_->id() > final_id_) return {};
  const bool held = plan_->holds();
  // A commit no longer needs any server.
  const bool under_way =
      plan_->phase() != CheckpointPlan::Phase::kIdle && plan_->phase() != CheckpointPlan::Phase::kCommitting;
  std::optional<std::string> failure;
  if (const std::string missing = members_.MissingServers(); !missing.empty()) {
    if (!under_way) return {};
    failure = absl::StrCat(missing, " is missing");
  } else {
    failure = plan_->Overdue(now);
    if (!failure.has_value()) failure = plan_->Report(server, part, now);
  }
  if (failure.has_value()) {
    End(*failure, now);
    return {};
  }
  const bool stopped = held_until_ != absl::InfiniteFuture();
  if (!stopped) plan_->OnHeartbeat(server, now);
  if (plan_->phase() == CheckpointPlan::Phase::kDraining) {
    if (!held) workers_.HoldData();
    if (workers_.at_rest()) {
      plan_->Capture(MakeManifest(now), now);
    } else if (!members_.AnyJoined(MemberRole::kWorker)) {
      End("no worker is left to finish the data that was begun", now);
      return {};
    }
  }
  if (held && !plan_->holds()) {
    if (plan_->id() == stop_id_) {
      held_until_ = now + kMaxHeld;
    } else {
      workers_.ReleaseData();
      status_.Release();
    }
  }
  return {plan_->hastens(), plan_->phase() == CheckpointPlan::Phase::kCapturing ? plan_->id() : 0};
}

v1::SaveCheckpointResponse CheckpointControl::Save(const v1::SaveCheckpointRequest& request) {
  v1::SaveCheckpointResponse response;
  std::string obstacle = Obstacle();
  if (request.unless_outlived() && OutlivesAServer(workers_.durability())) obstacle = "the job outlives its servers";
  if (request.unless_outlived() && obstacle.empty() && !workers_.leases_data()) {
    obstacle = "the job's programs may be amid a step; ballast checkpoint save takes one";
  }
  if (!obstacle.empty()) {
    response.set_failure(obstacle);
    return response;
  }
  uint64_t id = request.id();
  // An id that this coordinator never named, of before its restart for example, must not be waited for.
  const bool unknown = id >= plan_->id() && !plan_->requested(id);
  if (id == 0 || unknown) id = status_.finished() ? final_id_ : stop_id_ > 0 ? stop_id_ : plan_->Request();
  const bool captured = id < plan_->id() || (id == plan_->id() && plan_->phase() >= CheckpointPlan::Phase::kWriting);
  if (request.stop() && status_.running() && !captured) stop_id_ = id;
  if (id == last_.id()) return last_;
  response.set_id(id);
  if (id < plan_->id()) {
    response.set_failure("a later checkpoint has replaced it");
    return response;
  }
  response.set_pending(true);
  response.set_waiting_for(plan_->phase() == CheckpointPlan::Phase::kDraining ? workers_.ExplainWait()
                                                                              : plan_->WaitedFor());
  return response;
}

std::optional<internal::v1::CheckpointManifest> CheckpointControl::TakeCommit() {
  if (committing_ || !plan_.has_value() || plan_->phase() != CheckpointPlan::Phase::kCommitting) return std::nullopt;
  committing_ = true;
  return plan_->manifest();
}

void CheckpointControl::OnCommit(uint64_t id, const absl::Status& committed, absl::Time now) {
  committing_ = false;
  // The job, and the plan with it, may have ended meanwhile.
  if (plan_->phase() != CheckpointPlan::Phase::kCommitting || plan_->id() != id) return;
  End(committed.ok() ? "" : std::string(committed.message()), now);
}

}  // namespace ballast
