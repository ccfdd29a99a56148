// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/security/security_options.h"

namespace ballast {

// The job that is attacked, and what its attackers have: its servers speak TLS, ask for certificates and want tokens.
struct HostileTarget {
  // Addresses of the data ports by rank; server 0 has the coordinator.
  std::vector<std::string> addresses;
  std::string job;
  // A certificate with a reader's token, and with a worker's.
  SecurityOptions reader;
  SecurityOptions worker;
};

// One way to attack the servers of a running job. Nothing that it does may change the job.
struct Attack {
  std::string name;
  // Attacks until `end`, on threads of its own that it has joined before it returns; answers the number of attempts:
  // calls, connections or frames. An error is a fault of the attack itself. A server's refusal is none.
  std::function<absl::StatusOr<uint64_t>(const HostileTarget& target, absl::Time end)> run;
};

// Gives the calling thread, or all threads of this process, the lowest priority, so that what attackers compute
// themselves takes little from the job beside them: only what servers do for them counts.
void YieldThreadToOthers();
void YieldToOthers();

// Runs `attempt` again and again on `threads` threads, until `end`; answers the number of attempts. The threads have
// the lowest priority.
uint64_t AttackUntil(absl::Time end, int threads, const std::function<void(int thread, uint64_t attempt)>& attempt);

}  // namespace ballast
