// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "grpcpp/support/server_callback.h"
#include "server/rpc/cancellable_wait.h"

namespace ballast {

// A unary call that may wait before its response; the wait ends if the caller cancels. Deletes itself when finished.
// Thread safety: the same as gRPC's reactors.
class WaitingCall : public grpc::ServerUnaryReactor {
 public:
  explicit WaitingCall(std::function<void(WaitList::Ticket)> cancel)
      : wait_(std::make_shared<CancellableWait>(std::move(cancel))) {}

  const std::shared_ptr<CancellableWait>& wait() const { return wait_; }

  void OnCancel() override { wait_->Cancel(); }
  void OnDone() override { delete this; }

 private:
  const std::shared_ptr<CancellableWait> wait_;
};

}  // namespace ballast
