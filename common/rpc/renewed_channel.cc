// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/renewed_channel.h"

#include <utility>

namespace ballast {

bool RenewedChannel::Renew() {
  {
    absl::MutexLock lock(&mutex_);
    const absl::Time now = absl::Now();
    if (channel_->GetState(/*try_to_connect=*/false) != GRPC_CHANNEL_TRANSIENT_FAILURE || now - opened_ < kPause) {
      return false;
    }
    opened_ = now;
  }
  // Outside the lock, because it may read certificates.
  std::shared_ptr<grpc::Channel> renewed = open_();
  if (renewed == nullptr) return false;
  absl::MutexLock lock(&mutex_);
  channel_.swap(renewed);
  return true;
}

}  // namespace ballast
