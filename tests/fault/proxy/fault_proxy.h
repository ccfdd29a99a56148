// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <netinet/in.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace ballast {

// What goes wrong, and how often: shares in [0, 1].
struct FaultPlan {
  // Of a gRPC server's replies: the client gets none, though the call was carried out. The connection goes with it,
  // half of the times after a silence.
  double drop_replies = 0;
  absl::Duration silence = absl::Milliseconds(200);
  // Of the pieces that are passed on, either way: the connection ends in the middle of it.
  double cut = 0;
  // Each piece waits up to so long; the order stays.
  absl::Duration delay;
  // What a connection carries to the server in a second; 0: as much as it can.
  uint64_t bytes_per_second = 0;
};

// A proxy for TCP connections on a free port of the loopback, in front of one server: it passes bytes on, but for the
// faults that it is told to make. Which reply is lost, which piece is cut depends on the seed, the connection's number
// and the reply's or piece's within it alone.
// Invariant: what is not lost arrives unchanged and in order.
// Thread safety: all methods may be called from any thread.
class FaultProxy {
 public:
  // What happened so far.
  struct Counts {
    uint64_t connections = 0;
    // Connections that the target did not take.
    uint64_t refused = 0;
    uint64_t replies = 0;
    uint64_t dropped_replies = 0;
    uint64_t cuts = 0;
    uint64_t bytes = 0;
  };

  // `target` is an address of IPv4: "127.0.0.1:7700". INVALID_ARGUMENT where it is none.
  static absl::StatusOr<std::unique_ptr<FaultProxy>> Start(const std::string& target, FaultPlan plan, uint64_t seed);
  // Ends all connections.
  ~FaultProxy();
  FaultProxy(const FaultProxy&) = delete;

  // What clients connect to.
  const std::string& address() const { return address_; }

  // For connections that are accepted from now on: a server may be told the proxy's address before it has its own.
  // INVALID_ARGUMENT as Start.
  absl::Status SetTarget(const std::string& target);

  // For what is passed on from now on.
  void SetPlan(FaultPlan plan);

  // From its return on nothing passes, either way; connections stay open and nobody is told, until Heal.
  void Partition();
  void Heal();

  // Ends all connections at once, with a reset.
  void CutAll();

  Counts counts() const;

 private:
  // As Counts, counted before their effects show.
  struct Tally {
    std::atomic<uint64_t> connections{0}, refused{0}, replies{0}, dropped_replies{0}, cuts{0}, bytes{0};
  };
  class Connection;
  class Loop;

  FaultProxy(int listener, std::string address, sockaddr_in target);
  void Wake() const;

  const std::string address_;
  const int listener_;
  // Written to when what the thread reads below has changed.
  const int wake_;
  Tally tally_;

  mutable absl::Mutex mutex_;
  sockaddr_in target_ ABSL_GUARDED_BY(mutex_);
  FaultPlan plan_ ABSL_GUARDED_BY(mutex_);
  bool partitioned_ ABSL_GUARDED_BY(mutex_) = false;
  // Whether the thread has seen that.
  bool silent_ ABSL_GUARDED_BY(mutex_) = false;
  bool cut_all_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread thread_;
};

}  // namespace ballast
