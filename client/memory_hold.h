// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>

#include "absl/functional/any_invocable.h"
#include "grpcpp/support/slice.h"

namespace ballast {

// Lends the caller's memory to gRPC and reports when gRPC has released it: after a call has ended, its bytes may still
// be in a connection's send queue. Thread safety: none; gRPC may release the memory on any thread.
class MemoryHold {
 public:
  MemoryHold();

  // gRPC reads the memory until it releases the slice and all copies.
  grpc::Slice Lend(const void* memory, size_t bytes);

  // Calls `then` once after gRPC has released all lent memory: at once, or later on a gRPC thread. Call it last. A
  // connection releases memory at the latest when it closes, which its keep-alive enforces if the peer is unresponsive.
  void WhenBack(absl::AnyInvocable<void()> then);

 private:
  struct Token;
  // Shared with the slices that were lent.
  std::shared_ptr<Token> token_;
};

}  // namespace ballast
