// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "cli/hosts/remote_host.h"
#include "cli/launch/job_launch.h"

// Decides which process of a launch runs on which of `plan.hosts`, and what it and the host need for that.
namespace ballast {

// Returns whether any process may run on another machine.
bool HasOtherHosts(const LaunchPlan& plan);

// Ranks of workers go to the hosts in order; servers go to the hosts in turn, and each standby to the host after its
// server's.
int HostOfWorker(const LaunchPlan& plan, int rank);
int HostOfServer(const LaunchPlan& plan, int rank, bool standby);

// Returns what the fleet needs to know of each host: the programs, inputs and files that its processes need, and no
// others. Without hosts: this machine alone.
std::vector<RemoteHost::Options> PlanHosts(const LaunchPlan& plan);

// Returns the flags for the addresses at which a server on that host listens, and others reach it.
std::vector<std::string> AddressFlags(const LaunchPlan& plan, int host);

// `cores`: those of the worker's host.
std::vector<std::string> WorkerFlags(const LaunchPlan& plan, int rank, int cores, const std::string& coordinator);

// Returns "7701" for "0.0.0.0:7701".
absl::string_view PortOf(absl::string_view address);

}  // namespace ballast
