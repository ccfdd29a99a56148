// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/data_stream/stream_socket.h"
#include "gtest/gtest.h"

namespace ballast {

using Sockets = std::pair<std::unique_ptr<StreamSocket>, std::unique_ptr<StreamSocket>>;

// Returns the two ends of a TCP connection.
inline Sockets Connect() {
  const int listener = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  EXPECT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), length), 0);
  EXPECT_EQ(listen(listener, 1), 0);
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length);
  EXPECT_EQ(connect(client, reinterpret_cast<sockaddr*>(&address), length), 0);
  const int server = accept(listener, nullptr, nullptr);
  close(listener);
  for (const int file : {client, server}) fcntl(file, F_SETFL, O_NONBLOCK);
  return {std::make_unique<StreamSocket>(client), std::make_unique<StreamSocket>(server)};
}

// Both encrypt with these keys, with the cipher that the client prefers; returns how that ends for the client.
inline absl::Status Encrypt(Sockets& sockets, const std::string& client_key, const std::string& server_key,
                            StreamSocket::Cipher cipher = StreamSocket::FastestCipher()) {
  absl::Status at_server;
  std::thread server([&] {
    at_server = sockets.second->Encrypt(StreamSocket::Side::kServer, server_key, absl::Seconds(30));
    if (!at_server.ok()) sockets.second->ShutDown();
  });
  const absl::Status at_client =
      sockets.first->Encrypt(StreamSocket::Side::kClient, client_key, absl::Seconds(30), cipher);
  if (!at_client.ok()) sockets.first->ShutDown();
  server.join();
  return at_client.ok() ? at_server : at_client;
}

inline std::string Key(char fill) { return std::string(StreamSocket::kKeyBytes, fill); }

// Random bytes.
inline std::string Text(size_t bytes, uint32_t seed) {
  std::mt19937 random(seed);
  std::string text(bytes, '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

}  // namespace ballast
