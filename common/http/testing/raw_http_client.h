// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace ballast {

// A client that sends and receives raw bytes; every wait is bounded. Thread safety: none.
class RawHttpClient {
 public:
  explicit RawHttpClient(const std::string& address) {
    int port = 0;
    EXPECT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port));
    sockaddr_in to = {};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socket_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    connected_ = connect(socket_, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0;
  }
  RawHttpClient(RawHttpClient&& other) noexcept
      : socket_(std::exchange(other.socket_, -1)), connected_(other.connected_) {}
  ~RawHttpClient() {
    if (socket_ >= 0) close(socket_);
  }

  bool connected() const { return connected_; }

  // False if the server has closed the connection.
  bool Send(absl::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t sent = send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(sent);
    }
    return true;
  }

  void SendNothingMore() const { shutdown(socket_, SHUT_WR); }
  // Ends the connection with a reset.
  void Reset() {
    const linger now = {1, 0};
    setsockopt(socket_, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    close(std::exchange(socket_, -1));
  }

  // Receives until `enough` accepts the text, the server closes the connection or time is up.
  std::string Receive(const std::function<bool(const std::string&)>& enough) const {
    std::string text;
    const absl::Time deadline = absl::Now() + kTimeout;
    char buffer[65536];
    while (!enough(text)) {
      pollfd poll_for = {socket_, POLLIN, 0};
      const absl::Duration left = deadline - absl::Now();
      if (left <= absl::ZeroDuration() || poll(&poll_for, 1, static_cast<int>(absl::ToInt64Milliseconds(left))) <= 0) {
        ADD_FAILURE() << "no more bytes in time; got: " << text;
        break;
      }
      const ssize_t got = recv(socket_, buffer, sizeof(buffer), 0);
      if (got <= 0) break;
      text.append(buffer, got);
    }
    return text;
  }
  // Receives until the server closes the connection.
  std::string ReceiveAll() const {
    return Receive([](const std::string&) { return false; });
  }
  // Receives one response with a body that ends in a line break.
  std::string ReceiveOne() const {
    return Receive([](const std::string& text) {
      const size_t end = text.find("\r\n\r\n");
      return end != text.npos && absl::EndsWith(text, "\n") && text.size() > end + 4;
    });
  }

 private:
  static constexpr absl::Duration kTimeout = absl::Seconds(20);

  int socket_;
  bool connected_ = false;
};

// Sends a request and returns the whole response; the server is asked to close the connection.
inline std::string AskHttp(const std::string& address, absl::string_view method, absl::string_view path,
                           absl::string_view body = "") {
  const RawHttpClient client(address);
  EXPECT_TRUE(client.connected()) << address;
  client.Send(absl::StrCat(method, " ", path, " HTTP/1.1\r\nHost: ", address,
                           "\r\nConnection: close\r\nContent-Length: ", body.size(), "\r\n\r\n", body));
  return client.ReceiveAll();
}

}  // namespace ballast
