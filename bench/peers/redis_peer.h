// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "bench/peers/child_server.h"

struct redisContext;

namespace ballast {

// A peer of rows in memory: owns a redis-server process, which keeps nothing on disk, and a connection to it through
// hiredis, over loopback TCP. Keys are the 8 bytes of an id. Thread safety: confined to the main thread.
class RedisPeer {
 public:
  // NOT_FOUND without a redis-server on PATH; otherwise errors like ChildServer::Start.
  static absl::StatusOr<std::unique_ptr<RedisPeer>> Start(const ScratchFolder& folder);

  // MSET or MGET of 1,000 ids per command; all commands of a call are in one pipeline. Each id gets `value`.
  absl::Status Set(absl::Span<const uint64_t> ids, absl::string_view value);
  // [ids, value_bytes]. NOT_FOUND unless all ids have values of that size.
  absl::Status Get(absl::Span<const uint64_t> ids, size_t value_bytes, absl::Span<char> values);

 private:
  struct Disconnect {
    void operator()(redisContext* context) const;
  };
  using Connection = std::unique_ptr<redisContext, Disconnect>;

  RedisPeer(ChildProgram program, Connection connection)
      : program_(std::move(program)), connection_(std::move(connection)) {}
  static Connection Connect(int port);
  absl::Status Error() const;

  ChildProgram program_;
  Connection connection_;
};

}  // namespace ballast
