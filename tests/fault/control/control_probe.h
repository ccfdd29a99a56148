// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "ballast/v1/coordinator_service.grpc.pb.h"
#include "ballast/v1/parameter_service.grpc.pb.h"

namespace ballast {

// Owns the latencies of calls, by the call's name. Thread safety: none.
class Latencies {
 public:
  void Add(const std::string& call, absl::Duration took, const absl::Status& status);
  void Add(const Latencies& other);

  uint64_t calls() const;
  uint64_t failed() const { return failed_; }
  // The first failure.
  const absl::Status& failure() const { return failure_; }
  // Percentile over all calls, in milliseconds; `share` in [0, 1].
  double Percentile(double share) const;

  // Count, p50, p99 and maximum of each call, in milliseconds.
  nlohmann::ordered_json ToJson() const;

 private:
  std::map<std::string, std::vector<double>> milliseconds_;
  uint64_t failed_ = 0;
  absl::Status failure_;
};

// Makes every kind of control call on server 0 repeatedly and measures latencies: heartbeats and leases as worker 0,
// joins as worker 1, GetProgress and GetStatus as any client. Its job has two workers and endless data, whose leases
// it returns at once. Thread safety: confined to one thread.
class ControlProbe {
 public:
  // Joins as both workers. The job stays with the server that holds it.
  static absl::StatusOr<std::unique_ptr<ControlProbe>> Start(const std::string& address,
                                                             const v1::Durability& durability);
  // Calls Stop.
  ~ControlProbe() { Stop(); }

  // Makes each kind of call once, on this thread; returns the first error.
  absl::Status CallEach(absl::Duration timeout);
  // Like CallEach, but only the calls that change nothing.
  absl::Status CallReaders(absl::Duration timeout);

  // Returns the number of workers that the coordinator has lost.
  absl::StatusOr<uint64_t> CountLost();

  // Starts threads that make each kind of call every few milliseconds.
  void Run();
  // Ends them; returns the latencies measured since Run.
  Latencies Stop();

  // The job that such probes have.
  static v1::Job Job(const v1::Durability& durability);

 private:
  explicit ControlProbe(const std::string& address, const v1::Durability& durability);
  absl::StatusOr<v1::Member> Join(uint32_t rank, absl::Duration timeout);
  void Heartbeat(absl::Duration timeout, Latencies& latencies);
  void TakeLease(absl::Duration timeout, Latencies& latencies);
  void Read(absl::Duration timeout, Latencies& latencies);
  void JoinAgain(absl::Duration timeout, Latencies& latencies);
  // Makes the calls of one of the three threads.
  void CallAll(int thread, absl::Duration timeout, Latencies& latencies);
  template <typename Rpc>
  void Call(const char* name, absl::Duration timeout, Latencies& latencies, Rpc rpc);
  void RunUntilStopped(int thread);
  bool stopping();

  const v1::Durability durability_;
  std::unique_ptr<v1::CoordinatorService::Stub> coordinator_;
  std::unique_ptr<v1::ParameterService::Stub> shard_;
  v1::Member worker_;
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  Latencies latencies_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

}  // namespace ballast
