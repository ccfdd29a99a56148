// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ballast {

// How many connections the process's limit of open files has room for, `wanted` at most; raises that limit as far as it
// may and needs to. `wanted` of 0: 1,024, or fewer where there is no room for them. FAILED_PRECONDITION where there is
// no room for what is wanted.
absl::StatusOr<uint32_t> MakeRoomForConnections(uint32_t wanted);

// Owns a server's listening sockets and a thread that accepts connections and hands them on, at most so many at once;
// one beyond that is closed unread. gRPC's own listener has no such bound, and listens no more once the process has run
// out of files; this one waits until there are some. Knows nothing of what is spoken. A connection counts until whoever
// got it has shut it down. Thread safety: all methods may be called from any thread, Open once.
class ConnectionGate {
 public:
  // On all addresses of the host, at `port`; 0: a free one. UNAVAILABLE where the port is in use or the host is not
  // this machine's.
  static absl::StatusOr<std::unique_ptr<ConnectionGate>> Listen(const std::string& host, int port, uint32_t most);
  ~ConnectionGate();
  ConnectionGate(const ConnectionGate&) = delete;

  int port() const { return port_; }

  // Lets connections in from now on. `take` gets sockets that do not block, and owns them; called by one thread.
  void Open(std::function<void(int socket)> take);

  // Lets nobody in any more; those who are in stay. Idempotent.
  void Close();

  uint64_t open() const { return open_.load(std::memory_order_relaxed); }
  uint64_t refused() const { return refused_.load(std::memory_order_relaxed); }

 private:
  explicit ConnectionGate(uint32_t most) : most_(most) {}
  absl::Status Prepare(const std::string& host, int port);
  // Whether the listeners are looked at.
  void Listen(bool on);
  void Run();
  void Accept(int listener);
  bool IsListener(int file) const;

  const uint32_t most_;
  int port_ = 0;
  // Written before the thread starts.
  std::vector<int> listeners_;
  int epoll_ = -1, wake_ = -1;
  std::function<void(int)> take_;
  // Second descriptors of the connections that are in: by them it is seen when one has been shut down. The thread's
  // own, then Close's.
  std::vector<bool> watched_;
  bool paused_ = false;
  std::atomic<uint64_t> open_{0}, refused_{0};
  std::thread thread_;
};

}  // namespace ballast
