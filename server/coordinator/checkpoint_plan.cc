// SPDX-License-Identifier: Apache-2.0
#include "server/coordinator/checkpoint_plan.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/storage/checkpoint_folder.h"

namespace ballast {

void CheckpointPlan::Enter(Phase phase, absl::Time now) {
  phase_ = phase;
  entered_ = now;
  done_.assign(options_.servers, false);
}

bool CheckpointPlan::All() const { return std::find(done_.begin(), done_.end(), false) == done_.end(); }

void CheckpointPlan::OnHeartbeat(uint32_t server, absl::Time now) {
  if (phase_ == Phase::kIdle && now >= due_) Enter(Phase::kAnnounced, now);
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
    Enter(Phase::kWriting, now);
  }
  // A small shard may be written before the last one is captured.
  for (uint32_t shard = 0; shard < options_.servers; ++shard) done_[shard] = manifest_.files(shard).bytes() > 0;
  if (All()) Enter(Phase::kCommitting, now);
  return std::nullopt;
}

std::optional<std::string> CheckpointPlan::Overdue(absl::Time now) const {
  if (phase_ == Phase::kIdle || phase_ == Phase::kCommitting) return std::nullopt;
  const absl::Duration most = phase_ == Phase::kWriting ? kMaxWriting : kMaxStopped;
  if (now - entered_ < most) return std::nullopt;
  if (phase_ == Phase::kDraining) {
    return absl::StrCat("workers did not finish the data they held within ", absl::FormatDuration(most));
  }
  std::vector<std::string> waited_for;
  for (uint32_t server = 0; server < done_.size(); ++server) {
    if (!done_[server]) waited_for.push_back(absl::StrCat("server ", server));
  }
  return absl::StrCat(absl::StrJoin(waited_for, ", "), " did not finish its part within ", absl::FormatDuration(most));
}

void CheckpointPlan::End(absl::Time now) {
  if (phase_ == Phase::kIdle) return;
  ++next_id_;
  due_ = now + options_.interval;
  manifest_.Clear();
  Enter(Phase::kIdle, now);
}

}  // namespace ballast
