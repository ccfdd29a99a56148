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

// Owns a client's share of a local server's shared memory, and copies messages into it. Requests the memory with the
// first message, and again after the server was lost; until the server provides it, Lend returns nullopt.
// Thread safety: all methods may be called from any thread. The destructor returns after gRPC's last callback.
class SlotSender {
 public:
  // `stub` outlives this.
  SlotSender(v1::ParameterService::Stub* stub, std::string job);
  ~SlotSender();
  SlotSender(const SlotSender&) = delete;

  // Copies the message into a slot; nullopt if there is none. Never blocks.
  std::optional<BlockLoan> Lend(const grpc::ByteBuffer& message);

  // Releases the memory and requests none again. Loans stay valid.
  void Shutdown();

 private:
  // The call for whose duration the server provides the memory.
  class Stream;

  void AskIfDueLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnRegion(const v1::SharedRegion& description);
  void OnEnd(const grpc::Status& status);

  v1::ParameterService::Stub& stub_;
  const std::string job_;
  absl::Mutex mutex_;
  bool shutdown_ ABSL_GUARDED_BY(mutex_) = false;
  // Time of the next request for memory; infinite if the server has none for this client.
  absl::Time ask_at_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  // The current or last call. It is deleted only when the next one begins, because gRPC must not lose a channel's last
  // reference on its own threads.
  std::unique_ptr<Stream> stream_ ABSL_GUARDED_BY(mutex_);
  bool streaming_ ABSL_GUARDED_BY(mutex_) = false;
  // Null if there is no memory.
  std::shared_ptr<SlotPool> pool_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ballast
