// SPDX-License-Identifier: Apache-2.0
#include "server/push_window.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace ballast {

absl::Status PushWindow::CheckIncarnationLocked(uint64_t incarnation) const {
  if (incarnation >= incarnation_) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "push of incarnation ", incarnation, ", want the newest: the worker restarted as incarnation ", incarnation_));
}

absl::Status PushWindow::CheckIncarnation(uint64_t incarnation) const {
  absl::MutexLock lock(&mutex_);
  return CheckIncarnationLocked(incarnation);
}

absl::StatusOr<PushWindow::Begun> PushWindow::Begin(uint64_t incarnation, uint64_t sequence) {
  absl::MutexLock lock(&mutex_);
  if (absl::Status status = CheckIncarnationLocked(incarnation); !status.ok()) return status;
  if (incarnation > incarnation_ || entries_.empty()) {
    incarnation_ = incarnation;
    highest_ = 0;
    entries_.assign(kSize, Entry());
  }
  Entry& entry = entries_[sequence % kSize];
  if (entry.sequence == sequence) {
    if (entry.finished) return Begun{Start::kDuplicate, entry.outcome};
    return absl::UnavailableError(absl::StrCat("push ", sequence, " is being applied; ask again"));
  }
  if (sequence + kSize <= highest_) {
    return absl::FailedPreconditionError(absl::StrCat("push has sequence number ", sequence, ", want at least ",
                                                      highest_ - kSize + 1, ": older answers are forgotten"));
  }
  if (entry.sequence != 0 && !entry.finished) {
    return absl::ResourceExhaustedError(
        absl::StrCat("push ", sequence, ": more than ", kSize, " pushes of one worker in flight"));
  }
  highest_ = std::max(highest_, sequence);
  entry = Entry{sequence, false, {}};
  return Begun{Start::kNew, {}};
}

void PushWindow::Finish(uint64_t incarnation, uint64_t sequence, const PushOutcome& outcome) {
  absl::MutexLock lock(&mutex_);
  // A newer incarnation may have begun meanwhile; the answer is nobody's then.
  Entry& entry = entries_[sequence % kSize];
  if (incarnation != incarnation_ || entry.sequence != sequence) return;
  entry.finished = true;
  entry.outcome = outcome;
}

}  // namespace ballast
