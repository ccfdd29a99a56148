// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "ballast/v1/parameter_service.grpc.pb.h"
#include "client/shared_memory/slot_pool.h"
#include "grpcpp/support/byte_buffer.h"

namespace ballast {

// Lends messages to a server of the same machine in shared memory, where there is such a server. It asks the server for
// memory with the first message that it is offered, and again when that is lost with the server; until there is some,
// messages take the ordinary way.
// Thread safety: all methods may be called from any thread. The destructor returns when gRPC has let go of it.
class SlotSender {
 public:
  // `stub` outlives this.
  SlotSender(v1::ParameterService::Stub* stub, std::string job);
  ~SlotSender();
  SlotSender(const SlotSender&) = delete;

  // The message copied into a slot, if there is one; never slots.
  std::optional<BlockLoan> Lend(const grpc::ByteBuffer& message);

  // Gives the memory up and asks for none any more. Loans stay valid.
  void Shutdown();

 private:
  // The call that keeps the memory.
  class Stream;

  void AskIfDueLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnArea(const v1::SharedRegion& description);
  void OnEnd(const grpc::Status& status);

  v1::ParameterService::Stub& stub_;
  const std::string job_;
  absl::Mutex mutex_;
  bool shutdown_ ABSL_GUARDED_BY(mutex_) = false;
  // When to ask again; infinite where there is nothing to hope for.
  absl::Time ask_at_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  // Under way, from its start to its end. The one before is deleted when the next begins: gRPC may not lose a channel's
  // last user on a thread of its own.
  std::unique_ptr<Stream> stream_ ABSL_GUARDED_BY(mutex_);
  bool streaming_ ABSL_GUARDED_BY(mutex_) = false;
  // Null where there is no memory.
  std::shared_ptr<SlotPool> pool_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ballast
