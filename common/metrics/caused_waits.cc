// SPDX-License-Identifier: Apache-2.0
#include "common/metrics/caused_waits.h"

#include <algorithm>

namespace ballast {

void CausedWaits::Charge(uint32_t worker, absl::Time begin, absl::Time end) {
  absl::MutexLock lock(&mutex_);
  begin = std::max(begin, charged_until_);
  if (begin >= end) return;
  waits_[worker] += end - begin;
  charged_until_ = end;
}

std::vector<v1::CausedWait> CausedWaits::List() const {
  absl::MutexLock lock(&mutex_);
  std::vector<v1::CausedWait> list;
  for (const auto& [worker, waited] : waits_) {
    v1::CausedWait& one = list.emplace_back();
    one.set_worker(worker);
    one.set_seconds(absl::ToDoubleSeconds(waited));
  }
  return list;
}

}  // namespace ballast
