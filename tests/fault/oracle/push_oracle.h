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

namespace ballast {

// What the oracle's workers do.
struct OracleJob {
  // The servers themselves, by rank; and, for each worker, what it reaches them by, where that is something else. None
  // where `client` has a coordinator, which knows them.
  std::vector<std::string> servers;
  std::vector<std::vector<std::string>> ways;
  // Name, policy, codec, timeouts and what else is not the workers' own.
  ClientOptions client;
  uint32_t workers = 4;
  // Of each worker; it may be told to stop earlier.
  uint64_t pushes = 500;
  // A worker's at once, where pushes do not wait for others'.
  uint32_t in_flight = 4;
  // Each is one slice; with as many as here every server holds some.
  uint32_t tensors = 8;
  // At least `workers`.
  uint32_t elements = 64;
  // Of tensors that nobody pushes, which servers must keep all the same: all of them together.
  uint32_t idle_mib = 0;
};

// How the books and the weights compare.
struct OracleReport {
  uint64_t acknowledged = 0;
  // Acknowledged and not in the weights; in the weights more than once, or never acknowledged. Summed over the workers,
  // each tensor's own count by itself; the tensor with the most counts.
  uint64_t lost = 0;
  uint64_t duplicated = 0;
  // Elements that are not minus the sum of what was acknowledged.
  uint64_t wrong_weights = 0;
  // Attempts beyond the first, of pushes that were acknowledged.
  uint64_t retries = 0;
  // Values that a synchronous worker pulled after a step and that were not those of that step.
  uint64_t wrong_pulls = 0;
};

// Workers that push integers, each a thread with a client of its own, and books of what was acknowledged. With sgd at
// learning rate 1 and fp32 sums of small integers every weight must in the end be minus the sum of all acknowledged
// gradients, exactly. In each tensor element w is a count of worker w's pushes, so that lost ones are told from ones
// that were applied twice. A push that is not answered is sent again by the client until its retry_timeout, which so is
// to be longer than any fault; one that is given up then is an error, and the report would be a guess. Thread safety:
// all methods may be called from any thread.
class PushOracle {
 public:
  // Connects everyone and declares the tensors; their errors. INVALID_ARGUMENT for a policy that it does not know.
  static absl::StatusOr<std::unique_ptr<PushOracle>> Start(OracleJob job);
  // As Stop and Finish.
  ~PushOracle();

  // Whether a push is acknowledged at or after `begin`, by `deadline`; when it was.
  absl::StatusOr<absl::Time> AwaitAcknowledgement(absl::Time begin, absl::Time deadline);
  uint64_t acknowledged() const;
  // Whether every worker has made all its pushes, or given up, by then.
  bool AwaitEnd(absl::Time deadline);

  // No worker begins another push; in a synchronous job all end with the same step.
  void Stop();

  // Waits until all pushes are answered, at most as long as the client's timeouts let them take, then compares the
  // weights. The first error of any worker.
  absl::StatusOr<OracleReport> Finish();

 private:
  struct Worker;
  struct Flight;

  explicit PushOracle(OracleJob job);
  absl::Status Connect();
  std::vector<v1::TensorSpec> Specs() const;
  float Gradient(uint32_t worker, uint64_t number, uint32_t tensor, uint32_t element) const;
  void Fill(Flight& flight, uint32_t worker, uint64_t number) const;
  // Whether a worker may begin its push of that number.
  bool Begin(uint64_t number);
  void Note(Worker& worker, const Flight& flight, const absl::StatusOr<PushResult>& result);
  void RunFreely(Worker& worker);
  void RunInStep(Worker& worker);
  uint64_t WrongValues(const Flight& flight, uint64_t steps) const;
  absl::StatusOr<OracleReport> Compare();

  const OracleJob job_;
  const bool sync_;
  std::vector<std::unique_ptr<Worker>> workers_;

  mutable absl::Mutex mutex_;
  // Pushes of this number and above are not begun.
  uint64_t limit_ ABSL_GUARDED_BY(mutex_);
  uint64_t most_begun_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t acknowledged_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t ended_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time last_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ballast
