// SPDX-License-Identifier: Apache-2.0
#include "common/concurrency/clock.h"

#include "absl/time/clock.h"

namespace ballast {
namespace {

class RealClock : public Clock {
 public:
  absl::Time Now() const override { return absl::Now(); }
};

}  // namespace

Clock* Clock::Real() {
  static RealClock* const clock = new RealClock;
  return clock;
}

}  // namespace ballast
