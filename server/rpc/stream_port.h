// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/data_stream/message_stream.h"
#include "common/wire/buffer_pool.h"
#include "server/rpc/data_call.h"
#include "server/rpc/data_plane.h"
#include "server/rpc/stay_forecast.h"

namespace ballast {

// Serves the calls that one client makes on its data stream. Invariant: whatever the client sends, it gets what a call
// over gRPC would get, and costs no one else a thread or a place in the budget. Shared by its thread and its calls.
// Thread safety: all methods but Run may be called from any thread.
class DataPlane::StreamPort : public MessageReceiver, public std::enable_shared_from_this<StreamPort> {
 public:
  StreamPort(DataPlane* plane, std::unique_ptr<StreamSocket> socket, StreamRegistry::Holder holder);

  // Takes calls, and runs what they ask for, until the connection ends, or Stop and the end of the last call. Call it
  // once, on a thread of its own.
  void Run();
  // Takes no more calls, and cancels those under way, which end with an answer.
  void Stop(const absl::Status& reason);

  // Ends the call: with a message, or with an error. `sent`: as in MessageStream.
  void Respond(uint32_t number, const grpc::ByteBuffer& message, absl::AnyInvocable<void() &&> sent);
  void RespondError(uint32_t number, const absl::Status& status);
  const std::string& token() const { return holder_.token; }
  const std::string& peer() const { return holder_.peer; }
  void Pushed(const PushOutcome& outcome) { stay_.Took(outcome); }
  // Runs the task in Run's thread; never if the stream has ended.
  void RunLater(absl::AnyInvocable<void() &&> task) { stream_.RunLater(std::move(task)); }

 private:
  absl::StatusOr<char*> Room(const StreamFrame& frame) override;
  void Arrived(size_t bytes) override { request_.CheckFloats(bytes); }
  absl::Status Received(const StreamFrame& frame) override;
  absl::StatusOr<absl::Time> Tick(absl::Time now) override;

  // Returns null if the call has been refused. An error ends the stream.
  absl::StatusOr<std::shared_ptr<StreamCall>> Begin(const StreamFrame& frame);
  // The client may use the number again once it has the response.
  void Forget(uint32_t number) ABSL_LOCKS_EXCLUDED(mutex_);
  void Cancel(uint32_t number) ABSL_LOCKS_EXCLUDED(mutex_);
  void CancelAll() ABSL_LOCKS_EXCLUDED(mutex_);

  DataPlane& plane_;
  const StreamRegistry::Holder holder_;
  StreamSocket* const socket_;
  MessageStream stream_;
  // Used by Run's thread: the call whose request is arriving; null if it has been refused. And the request.
  std::shared_ptr<StreamCall> arriving_;
  BufferPool::Buffer request_;
  StayForecast stay_;
  mutable absl::Mutex mutex_;
  // Not OK: takes no more calls.
  absl::Status stopped_ ABSL_GUARDED_BY(mutex_);
  absl::Time stopped_at_ ABSL_GUARDED_BY(mutex_);
  // By number: those without a response.
  absl::flat_hash_map<uint32_t, std::weak_ptr<Call>> calls_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ballast
