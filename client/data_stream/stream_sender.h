// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/data_stream/stream_caller.h"
#include "common/concurrency/background_threads.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"

namespace ballast {

// Opens a data stream to a server when it is first wanted, and again after it has ended. Until it is open, and with
// servers that have none, there is no caller. Thread safety: all methods may be called from any thread. The destructor
// waits for the stream's thread, so it must not run on that or on gRPC's threads.
class StreamSender {
 public:
  // Returns the channel to the server at this time.
  using Channel = std::function<std::shared_ptr<grpc::Channel>()>;

  // `silence`: as in MessageStream.
  StreamSender(Channel channel, std::string job, absl::Duration silence)
      : channel_(std::move(channel)), job_(std::move(job)), silence_(silence) {}
  ~StreamSender() { Shutdown(); }
  StreamSender(const StreamSender&) = delete;

  // Returns the open stream; null if there is none at present, in which case this opens one if it is due.
  std::shared_ptr<StreamCaller> caller();

  // Ends the stream and opens none again.
  void Shutdown();

 private:
  // Opens the stream and serves it until it ends. Sets the time of the next attempt.
  void Serve();
  // Asks the server for a stream, and connects. Sets `pause` to the time until the next attempt if this one fails where
  // the next one would, too.
  absl::StatusOr<std::shared_ptr<StreamCaller>> Open(absl::Duration& pause);
  bool is_shut_down() const {
    absl::MutexLock lock(&mutex_);
    return shutdown_;
  }

  const Channel channel_;
  const std::string job_;
  const absl::Duration silence_;
  mutable absl::Mutex mutex_;
  bool shutdown_ ABSL_GUARDED_BY(mutex_) = false;
  // Serve runs.
  bool serving_ ABSL_GUARDED_BY(mutex_) = false;
  // Time of the next attempt to open a stream; infinite if the server has none.
  absl::Time open_at_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  // Null unless a call is under way that asks for a stream.
  grpc::ClientContext* asking_ ABSL_GUARDED_BY(mutex_) = nullptr;
  // Null unless a stream is open.
  std::shared_ptr<StreamCaller> caller_ ABSL_GUARDED_BY(mutex_);
  // Declared last: its destructor waits for the thread.
  BackgroundThreads thread_;
};

// Connects to the peer of a call, as gRPC names it ("ipv4:127.0.0.1:80"). INVALID_ARGUMENT if it is not reached over
// TCP, UNAVAILABLE or DEADLINE_EXCEEDED if it cannot be reached, CANCELLED if `give_up`, which is asked from time to
// time, returns true.
absl::StatusOr<std::unique_ptr<StreamSocket>> ConnectToPeer(const std::string& peer, absl::Duration timeout,
                                                            const std::function<bool()>& give_up);

}  // namespace ballast
