// SPDX-License-Identifier: Apache-2.0
#include "server/replication/change_queue.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status/error_reason.h"

namespace ballast {
namespace {

// Minimum delay before a refused push is retried, because each retry sends its bytes again.
constexpr char kRetryDelayMs[] = "200";

}  // namespace

absl::Status ChangeQueue::CheckRoom(uint64_t bytes) const {
  if (bytes_ + bytes <= max_bytes_) return absl::OkStatus();
  return WithReason(
      v1::ERROR_REASON_STANDBY_BEHIND,
      absl::ResourceExhaustedError(absl::StrCat("the standby is ", bytes_, " bytes behind: got a change of ", bytes,
                                                " bytes, want at most ", max_bytes_, " in all")),
      {{"retry_delay_ms", kRetryDelayMs}});
}

void ChangeQueue::Push(uint64_t position, std::string bytes) {
  bytes_ += bytes.size();
  changes_.push_back({{position, std::move(bytes)}, sent_ + bytes_});
}

std::optional<ChangeQueue::Change> ChangeQueue::Pop(std::vector<Done>& released) {
  if (changes_.empty()) return std::nullopt;
  Change change = std::move(changes_.front().change);
  changes_.pop_front();
  bytes_ -= change.bytes.size();
  sent_ += change.bytes.size();
  const auto end = held_back_.upper_bound(sent_ + pace_bytes_);
  for (auto held = held_back_.begin(); held != end; ++held) released.push_back(std::move(held->second));
  held_back_.erase(held_back_.begin(), end);
  return change;
}

bool ChangeQueue::Defer(uint64_t position, Done& done) {
  if (changes_.empty() || position < changes_.front().change.position) return false;
  const uint64_t index = position - changes_.front().change.position;
  // A position above the last one has no queued change.
  const Queued& queued = index < changes_.size() ? changes_[index] : changes_.back();
  if (queued.end <= sent_ + pace_bytes_) return false;
  held_back_.emplace(queued.end, std::move(done));
  return true;
}

std::vector<ChangeQueue::Done> ChangeQueue::Release() {
  std::vector<Done> released;
  for (auto& [end, done] : held_back_) released.push_back(std::move(done));
  held_back_.clear();
  return released;
}

std::vector<ChangeQueue::Done> ChangeQueue::Clear() {
  changes_.clear();
  sent_ += std::exchange(bytes_, 0);
  return Release();
}

}  // namespace ballast
