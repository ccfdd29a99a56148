// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace ballast {

// Returns the number of connections, `wanted` at most, that the limit on open files allows; raises that limit if
// needed. For a `wanted` of 0: what so many workers may need, but at least 1,024; fewer if there is no room for these.
// FAILED_PRECONDITION if there is no room for `wanted`.
absl::StatusOr<uint32_t> MakeRoomForConnections(uint32_t wanted, uint32_t workers = 1);

// Connections whose first bytes are `text`; `take` gets them once `bytes` bytes, which include it, have arrived.
struct ConnectionOpening {
  std::string text;
  size_t bytes = 0;
  std::function<void(int socket)> take;
};

// Owns a server's listening sockets and a thread that accepts connections and passes them on, up to a limit; further
// ones are closed unread. gRPC's own listener has no such limit, and it stops listening once the process has run out
// of files; this one waits until there are some. A connection counts until its owner has shut it down. Tells
// protocols apart by their first bytes only. Thread safety: all methods may be called from any thread, Open once.
class ConnectionGate {
 public:
  // Listens on all addresses of the host; port 0 picks a free port, if possible one that Linux gives to no connection
  // meanwhile should this process end and start again there. UNAVAILABLE if the port is in use or the host is not this
  // machine.
  static absl::StatusOr<std::unique_ptr<ConnectionGate>> Listen(const std::string& host, int port, uint32_t most);
  ~ConnectionGate();
  ConnectionGate(const ConnectionGate&) = delete;

  int port() const { return port_; }

  // Starts to accept connections. `take` gets non-blocking sockets, owns them, and is called by one thread. With
  // `opening`, it gets only those that begin differently, as soon as that is known, and those that say too little for a
  // second. `on_full` is called by that thread when it closes one beyond the limit, at most once a minute.
  void Open(std::function<void(int socket)> take, ConnectionOpening opening = {}, std::function<void()> on_full = {});

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
  // Passes the connection on if its first bytes say where to, or it has had its time. Returns whether it has.
  bool Sort(int watched, int socket, bool late);
  // Passes on those that have had their time; returns how long to wait for the next one.
  int SortLate();
  bool IsListener(int file) const;

  const uint32_t most_;
  int port_ = 0;
  // Written before the thread starts.
  std::vector<int> listeners_;
  int epoll_ = -1, wake_ = -1;
  std::function<void(int)> take_;
  ConnectionOpening opening_;
  std::function<void()> on_full_;
  // Confined to the thread.
  absl::Time tells_again_ = absl::InfinitePast();
  // A connection that has not said enough yet.
  struct Unsorted {
    int socket = -1;
    absl::Time late;
  };
  // By the second descriptor. Confined to the thread, then to Close.
  std::map<int, Unsorted> unsorted_;
  // True for each second descriptor of an open connection, by which its shutdown is seen. Confined to the thread,
  // then to Close.
  std::vector<bool> watched_;
  bool paused_ = false;
  std::atomic<uint64_t> open_{0}, refused_{0};
  std::thread thread_;
};

}  // namespace ballast
