// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace ballast {

// The limits of the transfers: a bare TCP stream over the loopback, one connection, not paced, 1 MiB blocks, sender and
// receiver in two processes.

// The receiver process: writes its address to `address_file`, then reads one connection after the other to its end.
// Returns only on an error. The bytes are not processed.
absl::Status ServeTcpSink(const std::string& address_file);
// The same for streams of gradients: subtracts each part, scaled, from weights, and answers each gradient with a byte,
// which is the least that a push is for.
absl::Status ServeSgdSink(const std::string& address_file);
// The same without applying: the byte asks for the next tensor, as a pull does.
absl::Status ServeAskingSink(const std::string& address_file);
// The same for streams with TLS: OpenSSL alone, with the cipher of data streams.
absl::Status ServeTlsSink(const std::string& address_file);
// ServeSgdSink and ServeAskingSink for streams with TLS.
absl::Status ServeTlsSgdSink(const std::string& address_file);
absl::Status ServeTlsAskingSink(const std::string& address_file);

struct TcpRound {
  double seconds = 0;
  uint64_t bytes = 0;
};

// Sends `bytes` repeatedly for `duration`, then waits until the receiver has read everything.
absl::StatusOr<TcpRound> SendTcpStream(const std::string& address, absl::string_view bytes, absl::Duration duration);
// To ServeSgdSink or ServeAskingSink; `bytes` are the floats of one tensor, whose answer it waits for before the next.
absl::StatusOr<TcpRound> SendTensors(const std::string& address, absl::string_view bytes, absl::Duration duration);
absl::StatusOr<TcpRound> SendTlsStream(const std::string& address, absl::string_view bytes, absl::Duration duration);
// To ServeTlsSgdSink or ServeTlsAskingSink.
absl::StatusOr<TcpRound> SendTlsTensors(const std::string& address, absl::string_view bytes, absl::Duration duration);

}  // namespace ballast
