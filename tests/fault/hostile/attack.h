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

// The attacked job, and its attackers' credentials: its servers use TLS and require certificates and tokens.
struct HostileTarget {
  // Addresses of the data ports by rank; server 0 has the coordinator.
  std::vector<std::string> addresses;
  std::string job;
  // A certificate with a reader's token, and one with a worker's.
  SecurityOptions reader;
  SecurityOptions worker;
};

// One way to attack the servers of a running job. It must not change the job.
struct Attack {
  std::string name;
  // Attacks until `end`, on threads that it has joined when it returns. Returns the number of attempts: calls,
  // connections or frames. An error is a failure of the attack itself, never a server's refusal.
  std::function<absl::StatusOr<uint64_t>(const HostileTarget& target, absl::Time end)> run;
};

// The attacks, one per file.

// With a reader's token: pulls of many slices at a step that never comes; they wait until a timeout or a disconnect.
Attack WaitingPulls();
// With a worker's token, in memory shared with each server: pushes that worker 0 made long ago, which change nothing,
// and whose payloads change while they are checked.
Attack RacingPushes();
// With a reader's token: every method of every service, with every field, valid, mutated and damaged.
Attack ReaderCalls();
// Every Http2Attack on the servers' data ports, within TLS and with a reader's token if the attack gets that far.
std::vector<Attack> Http2Floods();

// Gives the calling thread, or all threads of this process, the lowest priority. The attackers' own computation then
// takes little from the job: only the work that servers do for them counts.
void YieldThreadToOthers();
void YieldToOthers();

// Repeats `attempt` on `threads` threads of the lowest priority until `end`; returns the number of attempts.
uint64_t AttackUntil(absl::Time end, int threads, const std::function<void(int thread, uint64_t attempt)>& attempt);

}  // namespace ballast
