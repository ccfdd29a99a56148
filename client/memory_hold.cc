// SPDX-License-Identifier: Apache-2.0
#include "client/memory_hold.h"

#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "grpcpp/alarm.h"

namespace ballast {

struct MemoryHold::Token {
  absl::AnyInvocable<void()> then;

  ~Token() {
    if (then == nullptr) return;
    // gRPC releases slices while it holds its own locks, so run `then` on another thread.
    struct Later {
      grpc::Alarm alarm;
      absl::AnyInvocable<void()> then;
    };
    auto* later = new Later{{}, std::move(then)};
    later->alarm.Set(absl::ToChronoTime(absl::Now()), [later](bool) {
      later->then();
      delete later;
    });
  }
};

MemoryHold::MemoryHold() : token_(std::make_shared<Token>()) {}

grpc::Slice MemoryHold::Lend(const void* memory, size_t bytes) {
  // The cast is safe, because gRPC only reads the memory.
  return grpc::Slice(
      const_cast<void*>(memory), bytes, [](void* held) { delete static_cast<std::shared_ptr<Token>*>(held); },
      new std::shared_ptr<Token>(token_));
}

void MemoryHold::WhenBack(absl::AnyInvocable<void()> then) {
  if (token_.use_count() == 1) return then();
  token_->then = std::move(then);
  token_.reset();
}

}  // namespace ballast
