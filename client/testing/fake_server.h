// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"

namespace ballast {

// Serves one or two services on a free local port, for tests.
class FakeServer {
 public:
  // Pass `address` to reuse the address of an earlier server.
  explicit FakeServer(grpc::Service* service, grpc::Service* second = nullptr,
                      const std::string& address = "127.0.0.1:0") {
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(service);
    if (second != nullptr) builder.RegisterService(second);
    server_ = builder.BuildAndStart();
    address_ = absl::StrCat("127.0.0.1:", port);
  }
  ~FakeServer() { Stop(); }

  const std::string& address() const { return address_; }

  // Blocks until the service's calls have returned; later connections are refused.
  void Stop() { server_->Shutdown(std::chrono::system_clock::now()); }

 private:
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

// A fake of a gRPC server that hangs: connections stand and clients may send, but it reads nothing and never responds.
// Thread safety: confined to one thread.
class FrozenServer {
 public:
  FrozenServer() : listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    // A small kernel buffer leaves most of a message in gRPC's queue.
    const int bytes = 4096;
    setsockopt(listener_, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes));
    // The socket becomes readable only after more bytes than a connection's setup has.
    const int mark = 2000;
    setsockopt(listener_, SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof(mark));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    bind(listener_, reinterpret_cast<sockaddr*>(&address), size);
    listen(listener_, 16);
    getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    address_ = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
  }
  ~FrozenServer() {
    for (int connection : connections_) close(connection);
    close(listener_);
  }
  FrozenServer(const FrozenServer&) = delete;

  const std::string& address() const { return address_; }

  // Accepts a connection and blocks until a message begins to arrive, for at most 1 min each. Returns whether one did.
  bool AwaitMessage() {
    if (!Readable(listener_)) return false;
    const int connection = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (connection < 0) return false;
    connections_.push_back(connection);
    // SETTINGS with INITIAL_WINDOW_SIZE 2^31 - 1, and a WINDOW_UPDATE of the connection to the same size.
    static constexpr char kFrames[] =
        "\0\0\6\4\0\0\0\0\0"
        "\0\4\x7f\xff\xff\xff"
        "\0\0\4\x8\0\0\0\0\0"
        "\x7f\xff\0\0";
    constexpr ssize_t kBytes = sizeof(kFrames) - 1;
    return write(connection, kFrames, kBytes) == kBytes && Readable(connection);
  }

 private:
  static bool Readable(int socket) {
    pollfd waiting = {socket, POLLIN, 0};
    return poll(&waiting, 1, 60'000) == 1;
  }

  const int listener_;
  std::string address_;
  std::vector<int> connections_;
};

}  // namespace ballast
