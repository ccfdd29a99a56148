// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace ballast {

// Puts an Http2Inspector between gRPC's reads and its parser, without another copy or thread: this library defines
// recvmsg, close and SSL_read, which gRPC calls for all input, and forwards them. If the inspector refuses the bytes
// of a connection, they are withheld and gRPC gets an error, so it ends the connection. gRPC has no hook for this;
// decision 0023 lists the alternatives.
//
// Without TLS, it inspects the sockets passed to InspectReads; with TLS, every connection on which this process is
// the TLS server. The process's client connections are not inspected.

// INTERNAL if gRPC does not call the functions of this library, which happens if the program is linked differently.
absl::Status CheckReadsAreInspected();

// Inspects a socket until it is closed; call it before gRPC gets the socket, which must carry HTTP/2 without TLS.
// False if its number is too high; then it must not be used.
bool InspectReads(int socket);

// Number of connections that this process has refused.
uint64_t RefusedReads();

}  // namespace ballast
