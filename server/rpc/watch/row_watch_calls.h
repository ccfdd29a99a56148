// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "ballast/v1/parameter_service.pb.h"
#include "common/concurrency/executor.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "server/shard/parameter_shard.h"
#include "server/tables/watch/row_publishers.h"

namespace ballast {

// Serves ParameterService.WatchRows: owns what the shard publishes of its tables, and knows the open calls. Invariant:
// a caller that reads slowly, or not at all, holds no more than a bounded part of the memory, and nobody waits for it.
// Thread safety: all methods may be called from any thread.
class RowWatchCalls {
 public:
  struct Options {
    uint32_t rank = 0;
    // OK while the process serves the shard; a call ends with the error.
    std::function<absl::Status()> serving;
    // Encodes rows.
    Executor* executor = nullptr;
    RowPublishers::Options publishers;
    // A call that writes nothing for this long has a caller that does not read: it is cancelled.
    absl::Duration stall_timeout = absl::Seconds(60);
  };

  // `shard` and the executor outlive this.
  RowWatchCalls(const ParameterShard* shard, Options options);
  ~RowWatchCalls();

  // Begins the call, or ends it with the error of the request. `context` is that of the call.
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Begin(grpc::CallbackServerContext* context,
                                                    absl::StatusOr<v1::WatchRowsRequest> request);

  // Ends all calls with `reason`, and all later ones.
  void Close(const absl::Status& reason);

  const RowPublishers& publishers() const { return publishers_; }

 private:
  class Call;

  absl::Status OnShard(const absl::Status& status) const;
  // Checks a request and begins to watch.
  absl::StatusOr<std::unique_ptr<RowWatch>> Watch(const v1::WatchRowsRequest& request, std::function<void()> wake);

  const ParameterShard* const shard_;
  const Options options_;
  RowPublishers publishers_;
  absl::Mutex mutex_;
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);
  std::map<const Call*, std::weak_ptr<Call>> calls_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ballast
