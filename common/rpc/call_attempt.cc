// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/call_attempt.h"

#include <utility>

namespace ballast {

void CallAttempt::Cancel() {
  TryCancel();
  std::function<void()> cancel;
  {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    cancel = std::move(cancel_);
  }
  if (cancel) cancel();
}

void CallAttempt::OnCancel(std::function<void()> cancel) {
  {
    absl::MutexLock lock(&mutex_);
    if (!cancelled_) {
      cancel_ = std::move(cancel);
      return;
    }
  }
  cancel();
}

}  // namespace ballast
