// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "grpcpp/channel.h"

namespace ballast {

// Owns the channel to a server that may be away for a while and return at another address. gRPC 1.51 doubles its pause
// between two lookups of a name that it does not find, up to two minutes, and nothing but a new channel ends a pause.
// Thread safety: all methods may be called from any thread.
class RenewedChannel {
 public:
  // Null if a channel cannot be opened now.
  using Open = std::function<std::shared_ptr<grpc::Channel>()>;

  // Shortest time between two channels.
  static constexpr absl::Duration kPause = absl::Seconds(1);

  // Opens the first channel, which must succeed.
  explicit RenewedChannel(Open open) : open_(std::move(open)), channel_(open_()), opened_(absl::Now()) {}

  std::shared_ptr<grpc::Channel> channel() const {
    absl::MutexLock lock(&mutex_);
    return channel_;
  }

  // Opens another channel if this one has found no server, and has had the time. Call it after a call that got no
  // response; returns whether the channel is another one now.
  bool Renew();

 private:
  const Open open_;
  mutable absl::Mutex mutex_;
  std::shared_ptr<grpc::Channel> channel_ ABSL_GUARDED_BY(mutex_);
  absl::Time opened_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ballast
