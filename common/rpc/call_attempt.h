// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/client_context.h"

namespace ballast {

// One attempt of a call: gRPC's context, which need not be used. Thread safety: Cancel and OnCancel may be called from
// any thread.
class CallAttempt : public grpc::ClientContext {
 public:
  // Soon ends the attempt with CANCELLED, unless it has ended.
  void Cancel();

  // For an attempt that gRPC does not make: Cancel calls `cancel`, or has been called and OnCancel does at once.
  void OnCancel(std::function<void()> cancel);

 private:
  absl::Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::function<void()> cancel_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ballast
