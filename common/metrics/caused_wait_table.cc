// SPDX-License-Identifier: Apache-2.0
#include "common/metrics/caused_wait_table.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace ballast {

absl::Status CausedWaitTable::Report(uint32_t rank, uint64_t incarnation,
                                     const google::protobuf::RepeatedPtrField<v1::CausedWait>& waits) {
  for (const v1::CausedWait& wait : waits) {
    if (wait.worker() < workers_ && std::isfinite(wait.seconds()) && wait.seconds() >= 0) continue;
    return absl::InvalidArgumentError(absl::StrCat("caused_waits of server ", rank, ": got worker ", wait.worker(),
                                                   " with ", wait.seconds(), " s, want one of ", workers_,
                                                   " workers, and at least 0 s"));
  }
  Shard& shard = shards_[rank];
  if (shard.incarnation > incarnation) return absl::OkStatus();
  if (shard.incarnation < incarnation) {
    for (const auto& [worker, seconds] : shard.newest) shard.earlier[worker] += seconds;
    shard.newest.clear();
    shard.incarnation = incarnation;
  }
  for (const v1::CausedWait& wait : waits) shard.newest[wait.worker()] = wait.seconds();
  return absl::OkStatus();
}

void CausedWaitTable::Fill(v1::JobProgress& progress) const {
  Seconds longest;
  for (const auto& [rank, shard] : shards_) {
    Seconds sums = shard.earlier;
    for (const auto& [worker, seconds] : shard.newest) sums[worker] += seconds;
    for (const auto& [worker, seconds] : sums) longest[worker] = std::max(longest[worker], seconds);
  }
  for (const auto& [worker, seconds] : longest) {
    v1::CausedWait* const one = progress.add_caused_waits();
    one->set_worker(worker);
    one->set_seconds(seconds);
  }
}

}  // namespace ballast
