// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/security/tls_files.h"

namespace ballast {

// Ways in which an HTTP/2 peer can cost a server more than itself.
enum class Http2Attack {
  // One header whose value never ends, in as many CONTINUATION frames as the server accepts.
  kUnfinishedHeaders,
  // A block of small headers that never ends.
  kEndlessContinuation,
  // Calls that are cancelled at once.
  kRapidReset,
  kPingFlood,
  // Settings frames whose acknowledgements the client does not read.
  kSettingsFlood,
  // Connections that stop within the first message of the TLS handshake.
  kHalfOpenTls,
  // Connections that send nothing.
  kManyConnections,
  // Calls whose responses cannot be sent, because the window is 0; as many as a connection may have.
  kSlowReader,
  // Endless calls by a client that never acknowledges the settings that limit them.
  kUnacknowledgedCalls,
};

// "unfinished_headers" ..., in the order of the enumeration.
const std::vector<std::string>& Http2AttackNames();
absl::string_view NameOf(Http2Attack attack);
absl::StatusOr<Http2Attack> ParseHttp2Attack(absl::string_view name);

struct Http2AttackOptions {
  // IPv4:PORT.
  std::string address;
  Http2Attack attack = Http2Attack::kUnfinishedHeaders;
  // Simultaneous connections, each with its own thread unless the connections are idle.
  uint32_t connections = 4;
  // A connection that has sent this many bytes stays open and sends nothing more.
  uint64_t bytes_each = uint64_t{48} << 20;
  absl::Duration time = absl::Seconds(10);
  // If set, the attack uses TLS, with this certificate if there is one.
  std::optional<TlsFiles> tls;
  // Method, message and token (unless empty) of attacks that make calls.
  std::string path = "/ballast.v1.ParameterService/GetStatus";
  std::string request;
  std::string token;
};

struct Http2AttackCounts {
  uint64_t connections = 0;
  // Connections that the server did not accept, and those that it ended.
  uint64_t refused = 0;
  uint64_t cut = 0;
  uint64_t frames = 0;
  uint64_t bytes = 0;
};

// Attacks for the given time and reopens connections that the server ends. Returns within two seconds after that
// time, whatever the server does. INVALID_ARGUMENT for a bad address.
absl::StatusOr<Http2AttackCounts> RunHttp2Attack(const Http2AttackOptions& options);

}  // namespace ballast
