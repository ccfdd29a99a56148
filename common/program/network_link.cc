// SPDX-License-Identifier: Apache-2.0
#include "common/program/network_link.h"

#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace ballast {
namespace {

// Empty for addresses of another family.
std::string NumericText(const sockaddr* address) {
  if (address == nullptr || (address->sa_family != AF_INET && address->sa_family != AF_INET6)) return "";
  const socklen_t size = address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  char text[NI_MAXHOST];
  return getnameinfo(address, size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) == 0 ? text : "";
}

}  // namespace

absl::StatusOr<std::string> OwnAddressTowards(const std::string& host) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  // The port does not matter: nothing is sent.
  if (const int error = getaddrinfo(host.c_str(), "9", &hints, &found); error != 0) {
    return absl::UnavailableError(absl::StrCat("host ", host, ": its name cannot be resolved: ", gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    const int handle = socket(at->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (handle < 0) continue;
    sockaddr_storage own = {};
    socklen_t size = sizeof(own);
    const bool known = connect(handle, at->ai_addr, at->ai_addrlen) == 0 &&
                       getsockname(handle, reinterpret_cast<sockaddr*>(&own), &size) == 0;
    close(handle);
    std::string name = known ? NumericText(reinterpret_cast<const sockaddr*>(&own)) : "";
    if (!name.empty()) return name;
  }
  return absl::UnavailableError(absl::StrCat("host ", host, ": no network leads to it: ", std::strerror(errno)));
}

std::optional<double> LinkBytesPerSecond(absl::string_view address) {
  absl::string_view host = address.substr(0, address.rfind(':'));
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  const absl::StatusOr<std::string> own = OwnAddressTowards(std::string(host));
  ifaddrs* found = nullptr;
  if (!own.ok() || getifaddrs(&found) != 0) return std::nullopt;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(found, freeifaddrs);
  for (const ifaddrs* at = found; at != nullptr; at = at->ifa_next) {
    if (NumericText(at->ifa_addr) == *own)
      return InterfaceBytesPerSecond(absl::StrCat("/sys/class/net/", at->ifa_name));
  }
  return std::nullopt;
}

std::optional<double> InterfaceBytesPerSecond(const std::string& folder) {
  // An interface without a device, such as a container's, has a rate that means nothing.
  std::error_code error;
  if (!std::filesystem::exists(folder + "/device", error)) return std::nullopt;
  // In 10^6 bits per second; -1 if unknown.
  double megabits = 0;
  std::ifstream(folder + "/speed") >> megabits;
  return megabits > 0 ? std::optional(megabits * 1e6 / 8) : std::nullopt;
}

}  // namespace ballast
