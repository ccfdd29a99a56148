// SPDX-License-Identifier: Apache-2.0
#include "common/metrics/work.h"

#include <algorithm>

namespace ballast {

void Merge(const v1::Work& from, v1::Work& into) {
  into.set_examples(into.examples() + from.examples());
  into.set_loss_sum(into.loss_sum() + from.loss_sum());
  into.set_steps(into.steps() + from.steps());
  into.set_seconds(into.seconds() + from.seconds());
  into.set_wait_seconds(into.wait_seconds() + from.wait_seconds());
  into.set_pushes(into.pushes() + from.pushes());
  into.set_staleness_sum(into.staleness_sum() + from.staleness_sum());
  into.set_max_staleness(std::max(into.max_staleness(), from.max_staleness()));
  into.set_dropped(into.dropped() + from.dropped());
  into.set_skipped(into.skipped() + from.skipped());
  into.set_bytes_sent(into.bytes_sent() + from.bytes_sent());
  into.set_bytes_received(into.bytes_received() + from.bytes_received());
}

}  // namespace ballast
