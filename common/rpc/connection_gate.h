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

// Returns the number of connections, `wanted` at most, that the limit on open files allows; raises that limit if
// needed. For a `wanted` of 0: 1,024, or fewer if there is no room. FAILED_PRECONDITION if there is no room for
// `wanted`.
absl::StatusOr<uint32_t> MakeRoomForConnections(uint32_t wanted);

// Owns a server's listening sockets and a thread that accepts connections and passes them on, up to a limit; further
// ones are closed unread. gRPC's own listener has no such limit, and it stops listening once the process has run out
// of files; this one waits until there are some. A connection counts until its owner has shut it down. Knows nothing
// of protocols. Thread safety: all methods may be called from any thread, Open once.
class ConnectionGate {
 public:
  // Listens on all addresses of the host; port 0 picks a free port, if possible one that Linux gives to no connection
  // meanwhile should this process end and start again there. UNAVAILABLE if the port is in use or the host is not this
  // machine.
  static absl::StatusOr<std::unique_ptr<ConnectionGate>> Listen(const std::string& host, int port, uint32_t most);
  ~ConnectionGate();
  ConnectionGate(const ConnectionGate&) = delete;

  int port() const { return port_; }

  // Starts to accept connections. `take` gets non-blocking sockets, owns them, and is called by one thread.
  void Open(std::function<void(int socket)> take);

  // Accepts no more connections; open ones stay. Idempotent.
  void Close();

  uint64_t open() const { return open_.load(std::memory_order_relaxed); }
  uint64_t refused() const { return refused_.load(std::memory_order_relaxed); }

 private:
  explicit ConnectionGate(uint32_t most) : most_(most) {}
  absl::Status Prepare(const std::string& host, int port);
  // Turns polling of the listeners on or off.
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
  // True for each second descriptor of an open connection, by which its shutdown is seen. Confined to the thread,
  // then to Close.
  std::vector<bool> watched_;
  bool paused_ = false;
  std::atomic<uint64_t> open_{0}, refused_{0};
  std::thread thread_;
};

}  // namespace ballast
