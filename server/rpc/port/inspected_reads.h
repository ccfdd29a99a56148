// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace ballast {

// Puts an Http2Inspector between what gRPC reads and what it parses, without another copy or thread: this library
// defines recvmsg, close and SSL_read, which gRPC calls for every byte that it receives, and passes them on. The bytes
// of a connection that its inspector refuses are withheld, and gRPC is told that the connection is broken, which makes
// it end it. gRPC has no place of its own for this; decision 0023 says what else was tried.
//
// Without TLS, sockets are inspected that were announced by InspectReads; with TLS, every connection on which this
// process is the TLS server. Sockets and connections of its clients are left alone.

// INTERNAL if gRPC would not call the functions of this library, as it would not in a program that was
// linked otherwise.
absl::Status CheckReadsAreInspected();

// The socket is about to be given to gRPC and carries HTTP/2 without TLS. Inspected until it is closed. False if its
// number is too high; then it must not be used.
bool InspectReads(int socket);

// Connections of this process that were refused so far.
uint64_t RefusedReads();

}  // namespace ballast
