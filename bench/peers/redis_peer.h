// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "bench/peers/child_server.h"

struct redisContext;

namespace ballast {

// A peer of rows in memory: owns a redis-server process, which keeps nothing on disk, and connections to it through
// hiredis, over loopback TCP. Keys are the 8 bytes of an id. Thread safety: each connection is used by one thread at a
// time.
class RedisPeer {
 public:
  // NOT_FOUND without a redis-server on PATH; otherwise errors like ChildServer::Start.
  static absl::StatusOr<std::unique_ptr<RedisPeer>> Start(const ScratchFolder& folder, int connections = 1);

  // MSET or MGET of 1,000 ids per command; all commands of a call are in one pipeline. Each id gets `value`.
  absl::Status Set(absl::Span<const uint64_t> ids, absl::string_view value);
  // [ids, value_bytes]. NOT_FOUND unless all ids have values of that size.
  absl::Status Get(absl::Span<const uint64_t> ids, size_t value_bytes, absl::Span<char> values, int connection = 0);

 private:
  struct Disconnect {
    void operator()(redisContext* context) const;
  };
  using Connection = std::unique_ptr<redisContext, Disconnect>;

  RedisPeer(ChildProgram program, std::vector<Connection> connections)
      : program_(std::move(program)), connections_(std::move(connections)) {}
  static Connection Connect(int port);
  absl::Status Error(const redisContext& connection) const;

  ChildProgram program_;
  std::vector<Connection> connections_;
};

}  // namespace ballast
