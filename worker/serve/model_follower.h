// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "client/watch/row_watcher.h"
#include "common/rpc/credentials.h"
#include "worker/serve/served_model.h"

namespace ballast {

// Keeps a served model equal to the one that a job trains: reads the dense tensors again and again, and gets the rows
// of tables as they change. Goes on through restarts of servers, for however long they take. Does not join the job, so
// it needs a reader's token only. Thread safety: all methods may be called from any thread.
class ModelFollower {
 public:
  struct Options {
    // Address of the coordinator, host:port.
    std::string coordinator;
    Credentials credentials;
    // Time between two reads of the dense tensors.
    absl::Duration refresh = absl::Milliseconds(250);
    // Limit on the time until the job has declared its tensors and all values were read.
    absl::Duration connect_timeout = absl::Seconds(60);
  };

  // Blocks until the workers have declared the job's tensors, and returns the tables of the model in its order.
  static absl::StatusOr<std::vector<v1::TableSpec>> AwaitTables(const ModelDescription& description,
                                                                const Options& options);

  // Blocks until the model is ready. The model must outlive this. UNAVAILABLE or DEADLINE_EXCEEDED names what was
  // missing; INVALID_ARGUMENT names a tensor or table of the model that the job has not, or has with another shape.
  static absl::StatusOr<std::unique_ptr<ModelFollower>> Start(ServedModel* model, const Options& options);
  ~ModelFollower();
  ModelFollower(const ModelFollower&) = delete;

  // OK while values arrive; otherwise the error of the last attempt to read dense tensors, or of a server from which no
  // rows come.
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mutex_);
  RowWatcher::Counts row_counts() const;

 private:
  ModelFollower(ServedModel* model, const Options& options) : model_(model), options_(options) {}
  // Connects for the first time, or in place of a client that has failed: that one has no way back once it has lost its
  // coordinator for long, or a server has moved.
  absl::Status Connect(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the ids of the model's parameters.
  absl::StatusOr<std::vector<uint32_t>> FindTensors(const ShardMap& map) const;
  absl::Status WatchTables(const ShardMap& map);
  // Reads the dense tensors once.
  absl::Status Read();
  void Run();
  void SetStatus(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);

  ServedModel* const model_;
  const Options options_;
  // Set by Start, then constant.
  std::unique_ptr<RowWatcher> watcher_;
  // Replaced by the follower's thread under the lock, for the destructor.
  std::shared_ptr<Client> client_;
  // Identifiers of the model's parameters. Confined to the follower's thread, which reads into the values.
  std::vector<uint32_t> ids_;
  std::vector<std::vector<float>> values_;

  mutable absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  // Declared last, because it uses the other fields.
  std::thread thread_;
};

}  // namespace ballast
