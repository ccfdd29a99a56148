// SPDX-License-Identifier: Apache-2.0
#include "server/replication/transfer_progress.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"

namespace ballast {
namespace {

constexpr absl::Duration kLogInterval = absl::Seconds(5);
constexpr absl::Duration kRateInterval = absl::Seconds(2);

double Mebibytes(uint64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

}  // namespace

void TransferProgress::Begin(absl::Time now) {
  *this = TransferProgress();
  begun_ = progressed_ = logged_ = marked_ = now;
}

void TransferProgress::Sent(uint64_t sent, absl::Time now) {
  // Idle time before this message does not count.
  if (sent_ <= taken_) progressed_ = now;
  sent_ += sent;
}

void TransferProgress::Taken(uint64_t taken, absl::Time now) {
  if (taken <= taken_) return;
  taken_ = taken;
  progressed_ = now;
}

absl::Duration TransferProgress::Silence(absl::Time now) const {
  return sent_ <= taken_ ? absl::ZeroDuration() : now - progressed_;
}

void TransferProgress::Fill(uint64_t queued, absl::Time now, v1::StandbyReport& report) {
  if (const absl::Duration since = now - marked_; since >= kRateInterval) {
    rate_ = (taken_ - taken_at_mark_) / absl::ToDoubleSeconds(since);
    marked_ = now;
    taken_at_mark_ = taken_;
  }
  report.set_bytes_total(total_);
  report.set_bytes_done(std::min(done_, total_));
  report.set_lag_bytes(queued + std::max(sent_, taken_) - taken_);
  report.set_bytes_per_second(static_cast<uint64_t>(rate_));
}

std::optional<std::string> TransferProgress::Line(const v1::StandbyReport& report, absl::Time now) {
  if (now - logged_ < kLogInterval) return std::nullopt;
  logged_ = now;
  return absl::StrFormat("%.0f of %.0f MiB sent, %.1f MiB/s; %.1f MiB behind", Mebibytes(report.bytes_done()),
                         Mebibytes(report.bytes_total()), Mebibytes(report.bytes_per_second()),
                         Mebibytes(report.lag_bytes()));
}

void SentSlices::Begin() {
  Clear();
  transferring_ = true;
}

bool SentSlices::TryEnd() {
  transferring_ = std::exchange(declared_, false);
  return !transferring_;
}

std::vector<OwnedSlice> SentSlices::Unsent(std::vector<OwnedSlice> slices) const {
  std::erase_if(slices, [this](const OwnedSlice& slice) { return sent_.contains(slice.key); });
  return slices;
}

void SentSlices::Clear() {
  transferring_ = false;
  declared_ = false;
  sent_.clear();
}

std::vector<bool> SentSlices::Wanted(const internal::v1::ShardRecord& record) const {
  std::vector<bool> wanted;
  if (!transferring_) return wanted;
  for (const internal::v1::LoggedPush::Gradient& gradient : record.push().gradients()) {
    wanted.push_back(sent_.contains({gradient.tensor_id(), gradient.slice_index()}));
  }
  return wanted;
}

}  // namespace ballast
