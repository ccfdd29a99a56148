// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ballast {

// Returns the address at which `host` reaches this machine: the one from which the system would send to it.
// UNAVAILABLE if the host's name cannot be resolved or no network leads to it.
absl::StatusOr<std::string> OwnAddressTowards(const std::string& host);

// Returns the rate of the network interface that leads to "host:port", in bytes per second and direction. nullopt if
// the system knows none: for the loopback interface, those of containers, and many of virtual machines.
std::optional<double> LinkBytesPerSecond(absl::string_view address);

// Returns the same for an interface by its folder in /sys/class/net.
std::optional<double> InterfaceBytesPerSecond(const std::string& folder);

}  // namespace ballast
