// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/socket.h>

namespace ballast {

// Turns pacing off for a TCP socket that is about to connect to, or listen at, an address of the loopback, where there
// is no network to spare: chooses CUBIC for its congestion control. BBR, the default of some systems, sends by a timer,
// which takes longer than the bytes themselves. Other sockets stay as they are, and so do all if the system does not
// permit CUBIC. An established connection would still be paced.
void StopPacingOnLoopback(int socket, const sockaddr* address);

}  // namespace ballast
