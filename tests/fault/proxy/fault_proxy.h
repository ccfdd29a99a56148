// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <netinet/in.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/data_stream/stream_frame.h"

namespace ballast {

// Finds what completes responses in a server's bytes: of gRPC, the HTTP/2 frames (RFC 9113, section 4.1) that carry
// headers and end a stream; on a data stream, the frame before each response. Without such a frame a client has no
// response, whatever it received before. Thread safety: none.
class ReplyScanner {
 public:
  // Scans the connection's next bytes. If they complete the header of such a frame, returns the offset after it and
  // has consumed the bytes up to there; call it again with the rest. Otherwise returns nothing and has consumed all.
  std::optional<size_t> Next(absl::string_view bytes);

 private:
  static constexpr size_t kHeaderBytes = 9;

  uint8_t header_[std::max(kHeaderBytes, kStreamFrameBytes)] = {};
  bool begun_ = false, data_stream_ = false;
  // Bytes of the current header; 0 between frames and within a payload.
  size_t header_bytes_ = 0;
  // Bytes left of the current payload.
  size_t payload_left_ = 0;
};

// Kinds of faults and their frequencies, as shares in [0, 1].
struct FaultPlan {
  // Share of replies lost though the call was executed. The connection ends too, half of the times after `silence`.
  double drop_replies = 0;
  absl::Duration silence = absl::Milliseconds(200);
  // Share of the forwarded pieces, in either direction, in whose middle the connection ends.
  double cut = 0;
  // Each piece is delayed by up to this; the order is kept.
  absl::Duration delay;
  // Bytes per second that a connection carries to the server; 0: no limit.
  uint64_t bytes_per_second = 0;
};

// A proxy for TCP connections on a free loopback port, in front of one server: it forwards bytes and injects the
// planned faults. The choice of lost replies and cut pieces depends only on the seed, the connection's number and the
// number of the reply or piece within it.
// Invariant: bytes that are not lost arrive unchanged and in order.
// Thread safety: all methods may be called from any thread.
class FaultProxy {
 public:
  struct Counts {
    uint64_t connections = 0;
    // Connections that the target did not accept.
    uint64_t refused = 0;
    uint64_t replies = 0;
    uint64_t dropped_replies = 0;
    uint64_t cuts = 0;
    uint64_t bytes = 0;
  };

  // `target` is an IPv4 address like "127.0.0.1:7700". INVALID_ARGUMENT if it is not.
  static absl::StatusOr<std::unique_ptr<FaultProxy>> Start(const std::string& target, FaultPlan plan, uint64_t seed);
  // Ends all connections.
  ~FaultProxy();
  FaultProxy(const FaultProxy&) = delete;

  // Address for clients to connect to.
  const std::string& address() const { return address_; }

  // Applies to connections accepted from now on: a server may need the proxy's address before it has its own. Errors
  // like Start.
  absl::Status SetTarget(const std::string& target);

  // Applies to bytes forwarded from now on.
  void SetPlan(FaultPlan plan);

  // After it returns nothing passes in either direction; connections stay open without an error until Heal.
  void Partition();
  void Heal();

  // Ends all connections at once, with a reset.
  void CutAll();

  Counts counts() const;

 private:
  // Like Counts, but counted before the effects are visible.
  struct Tally {
    std::atomic<uint64_t> connections{0}, refused{0}, replies{0}, dropped_replies{0}, cuts{0}, bytes{0};
  };
  class Connection;
  class Loop;

  FaultProxy(int listener, std::string address, sockaddr_in target);
  void Wake() const;

  const std::string address_;
  const int listener_;
  // Written to when the fields below, which the thread reads, have changed.
  const int wake_;
  Tally tally_;

  mutable absl::Mutex mutex_;
  sockaddr_in target_ ABSL_GUARDED_BY(mutex_);
  FaultPlan plan_ ABSL_GUARDED_BY(mutex_);
  bool partitioned_ ABSL_GUARDED_BY(mutex_) = false;
  // True once the thread has seen the partition.
  bool silent_ ABSL_GUARDED_BY(mutex_) = false;
  bool cut_all_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread thread_;
};

}  // namespace ballast
