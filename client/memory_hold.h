// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>

#include "absl/functional/any_invocable.h"
#include "grpcpp/support/slice.h"

namespace ballast {

// Lends the caller's memory to gRPC and tells when it has it back: a call that was ended may leave bytes behind in a
// connection's queue that are still to be sent. Thread safety: none; what is lent may be given back on any thread.
class MemoryHold {
 public:
  MemoryHold();

  // Read by gRPC until it lets go of the slice and of its copies.
  grpc::Slice Lend(const void* memory, size_t bytes);

  // Calls `then` once when all that was lent is back: at once, or later on a thread of gRPC's. To be called last. A
  // connection lets go at the latest when it is closed, which its keep-alive does to a silent peer.
  void WhenBack(absl::AnyInvocable<void()> then);

 private:
  struct Token;
  // Shared with the slices that were lent.
  std::shared_ptr<Token> token_;
};

}  // namespace ballast
