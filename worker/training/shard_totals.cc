// SPDX-License-Identifier: Apache-2.0
#include "worker/training/shard_totals.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace ballast {
namespace {

void Merge(const v1::Histogram& from, v1::Histogram& to) {
  for (int i = 0; i < from.buckets_size(); ++i) {
    if (i == to.buckets_size()) to.add_buckets(0);
    to.set_buckets(i, to.buckets(i) + from.buckets(i));
  }
  to.set_count(to.count() + from.count());
  to.set_sum(to.sum() + from.sum());
  to.set_max(std::max(to.max(), from.max()));
}

Distribution Describe(const v1::Histogram& histogram) {
  Distribution distribution;
  distribution.buckets.assign(histogram.buckets().begin(), histogram.buckets().end());
  distribution.mean = histogram.count() == 0 ? 0 : histogram.sum() / histogram.count();
  distribution.max = histogram.max();
  return distribution;
}

}  // namespace

void AddShards(absl::Span<const v1::GetStatusResponse> shards, Summary& summary) {
  v1::Histogram staleness, waits;
  for (const v1::GetStatusResponse& shard : shards) {
    Merge(shard.staleness(), staleness);
    Merge(shard.wait_microseconds(), waits);
    summary.max_staleness = std::max<int64_t>(summary.max_staleness, shard.max_staleness());
    summary.dropped += shard.dropped();
    summary.bytes_sent += shard.push_bytes();
    summary.gradient_bytes += shard.push_bytes();
    summary.bytes_received += shard.pull_bytes();
  }
  summary.staleness = Describe(staleness);
  if (staleness.count() > 0) summary.mean_staleness = summary.staleness.mean;
  summary.wait_microseconds = Describe(waits);
}

void AddPushes(const v1::GetProgressResponse& reported, absl::Span<const v1::GetStatusResponse> shards,
               Summary& summary) {
  uint64_t all_lost = 0, duplicated = 0;
  summary.pushes_lost_by_shard.clear();
  for (const v1::GetStatusResponse& shard : shards) {
    uint64_t lost = 0;
    for (const v1::GetStatusResponse::WorkerPushes& worker : shard.worker_pushes()) {
      // Pushes of the newest incarnation, and of earlier ones.
      uint64_t acknowledged = 0, acknowledged_before = 0;
      for (const v1::GetProgressResponse::WorkerPushes& report : reported.pushes()) {
        const int rank = static_cast<int>(shard.shard());
        if (report.worker() != worker.worker() || rank >= report.acknowledged_size()) continue;
        (report.incarnation() == worker.incarnation() ? acknowledged : acknowledged_before) +=
            report.acknowledged(rank);
      }
      const uint64_t accepted = worker.accepted_of_incarnation();
      const uint64_t accepted_before = worker.accepted() - accepted;
      if (acknowledged > accepted) lost += acknowledged - accepted;
      if (acknowledged_before > accepted_before) lost += acknowledged_before - accepted_before;
      // Each sequence number counts once.
      if (accepted > worker.highest_sequence()) duplicated += accepted - worker.highest_sequence();
    }
    all_lost += lost;
    summary.pushes_lost_by_shard.push_back(static_cast<int64_t>(lost));
  }
  summary.pushes_lost = all_lost;
  summary.pushes_duplicated = duplicated;
}

std::string DescribeLosses(const Summary& summary) {
  std::string text;
  for (size_t rank = 0; rank < summary.pushes_lost_by_shard.size(); ++rank) {
    const int64_t lost = summary.pushes_lost_by_shard[rank];
    if (lost == 0) continue;
    absl::StrAppend(&text, text.empty() ? "" : ", ", "shard ", rank, " lost ", lost, " acknowledged pushes");
  }
  if (text.empty()) return text;
  return absl::StrCat(text, ": restarted without the last second of the log, so training continued from older weights");
}

}  // namespace ballast
