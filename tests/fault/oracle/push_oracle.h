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

// The work of the oracle's workers.
struct OracleJob {
  // Servers by rank; for each worker, the addresses by which it reaches them, if they differ. Both are empty if
  // `client` has a coordinator, which knows the addresses.
  std::vector<std::string> servers;
  std::vector<std::vector<std::string>> ways;
  // Name, policy, codec, timeouts and all other options that workers share.
  ClientOptions client;
  uint32_t workers = 4;
  // Pushes per worker, unless it is told to stop earlier.
  uint64_t pushes = 500;
  // Pushes in flight per worker, if pushes do not wait for other workers'.
  uint32_t in_flight = 4;
  // Each tensor is one slice; with this many, every server holds some.
  uint32_t tensors = 8;
  // At least `workers`.
  uint32_t elements = 64;
  // Total size of the tensors that nobody pushes but servers must keep.
  uint32_t idle_mib = 0;
};

// Comparison of the acknowledged pushes with the weights.
struct OracleReport {
  uint64_t acknowledged = 0;
  // Pushes acknowledged but not in the weights; in the weights more than once, or never acknowledged. Summed over the
  // workers, for the tensor with the most, because each tensor has its own count.
  uint64_t lost = 0;
  uint64_t duplicated = 0;
  // Elements that are not minus the sum of the acknowledged gradients.
  uint64_t wrong_weights = 0;
  // Attempts beyond the first, of acknowledged pushes.
  uint64_t retries = 0;
  // Values pulled by a synchronous worker after a step that were not those of the step.
  uint64_t wrong_pulls = 0;
};

// Owns workers that push integers, one thread and client each, and records of the acknowledged pushes. With sgd at
// learning rate 1, and because fp32 sums of small integers are exact, every weight must in the end be exactly minus
// the sum of all acknowledged gradients. In each tensor element w counts worker w's pushes, which tells lost pushes
// from those applied twice. The client resends a push without a response until its retry_timeout, which must be
// longer than any fault; a push that still fails is an error, because a report would be a guess. Thread safety: all
// methods may be called from any thread.
class PushOracle {
 public:
  // Connects all workers and declares the tensors; returns their errors. INVALID_ARGUMENT for an unsupported policy.
  static absl::StatusOr<std::unique_ptr<PushOracle>> Start(OracleJob job);
  // Calls Stop and Finish.
  ~PushOracle();

  // Returns the time of an acknowledgement at or after `begin`; DEADLINE_EXCEEDED if there is none by `deadline`.
  absl::StatusOr<absl::Time> AwaitAcknowledgement(absl::Time begin, absl::Time deadline);
  uint64_t acknowledged() const;
  // Returns true if every worker has made all its pushes, or failed, before the deadline.
  bool AwaitEnd(absl::Time deadline);

  // No worker begins another push; in a synchronous job all end with the same step.
  void Stop();

  // Waits until all pushes have a response, at most as long as the client's timeouts allow, then compares the
  // weights. Returns the first error of any worker.
  absl::StatusOr<OracleReport> Finish();

 private:
  struct Worker;
  struct Flight;

  explicit PushOracle(OracleJob job);
  absl::Status Connect();
  std::vector<v1::TensorSpec> Specs() const;
  float Gradient(uint32_t worker, uint64_t number, uint32_t tensor, uint32_t element) const;
  void Fill(Flight& flight, uint32_t worker, uint64_t number) const;
  // Returns whether a worker may begin its push of that number.
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
