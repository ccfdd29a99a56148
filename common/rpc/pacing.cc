// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/pacing.h"

#include <netinet/in.h>
#include <netinet/tcp.h>

namespace ballast {
namespace {

bool IsLoopback(const sockaddr* address) {
  if (address->sa_family == AF_INET6) {
    const in6_addr& six = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(&six) || (IN6_IS_ADDR_V4MAPPED(&six) && six.s6_addr[12] == IN_LOOPBACKNET);
  }
  return address->sa_family == AF_INET &&
         ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr) >> IN_CLASSA_NSHIFT == IN_LOOPBACKNET;
}

}  // namespace

void StopPacingOnLoopback(int socket, const sockaddr* address) {
  constexpr char kControl[] = "cubic";
  if (IsLoopback(address)) setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, kControl, sizeof(kControl) - 1);
}

}  // namespace ballast
