// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ballast {

// A host of a job, as `--hosts` names it.
struct JobHost {
  // The remote shell's name for it, such as "me@192.0.2.10".
  std::string login;
  // Name or address at which the others reach the host.
  std::string address;
  int workers = 1;
  // This machine: its processes are started directly.
  bool local = false;
};

// Parses a list such as "localhost,me@b:2,[2001:db8::1]:0": names or addresses, each once, with the number of workers
// (default: 1). INVALID_ARGUMENT names the bad entry.
absl::StatusOr<std::vector<JobHost>> ParseHosts(absl::string_view text);

// Accepts only characters of host names (and *) and IP addresses: OpenSSL would parse others as more than a host.
bool IsHost(absl::string_view host);

// Returns "host:port", with brackets around an IPv6 address.
std::string WithPort(const std::string& host, absl::string_view port);

}  // namespace ballast
