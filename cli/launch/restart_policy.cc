// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/restart_policy.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "cli/command/command.h"
#include "common/job/job_config.h"

namespace ballast {
namespace {

// Pause before a process is first restarted; doubles with each restart, up to the limit.
constexpr absl::Duration kRestartPause = absl::Milliseconds(200);
constexpr absl::Duration kMaxRestartPause = absl::Seconds(30);
// Additional pause while the coordinator does not know that a worker has ended: it does not assign a rank twice.
constexpr absl::Duration kReportTimeout = absl::Seconds(3);
// Exit status of a worker that lost its device or its connections while the job continues.
constexpr int kExitLost = 3;

}  // namespace

RestartPolicy::Decision RestartPolicy::OnEnd(const EndedProcess& process, bool job_started) {
  const ExitStatus& end = process.end;
  // A worker may finish before the others; a server never exits by itself.
  if (process.asked || (!process.server && end.ok())) return {Action::kNone};
  // Any other exit is a permanent error: a restarted process would fail in the same way.
  const bool died = end.signaled || (!process.server && end.number == kExitLost);
  const bool left = !process.server && !end.signaled && end.number == kExitInterrupted;
  if ((!died && !left) || !job_started) return {Action::kFail};
  if (process.server && durability_.mode() == v1::Durability::CHECKPOINT) {
    if (!process.killed_by_chaos && ++job_restarts_ > max_restarts_) return {Action::kFail};
    return {Action::kRestartJob, "the job restarts from its newest checkpoint"};
  }
  if (process.server && !OutlivesAServer(durability_)) return {Action::kFail};
  if (died && (process.killed_by_chaos || process.restarts < max_restarts_)) return Restart(process);
  // Only worker 0 saves the model, and only server 0 has the coordinator's state.
  const bool dispensable = process.substitute && (process.rank > 0 || process.standby);
  if (!dispensable) return {Action::kFail};
  return {Action::kContinue, "the job continues without it"};
}

RestartPolicy::Decision RestartPolicy::Restart(const EndedProcess& process) const {
  const int doublings = process.killed_by_chaos ? 0 : std::min(process.restarts, 16);
  const absl::Duration pause = std::min(kRestartPause * (1 << doublings), kMaxRestartPause);
  const std::string text = absl::StrCat("restarting it in ", absl::FormatDuration(pause));
  if (process.killed_by_chaos) return {Action::kRestart, text, pause, process.restarts};
  const int restarts = process.restarts + 1;
  return {Action::kRestart, absl::StrCat(text, " (restart ", restarts, " of ", max_restarts_, ")"), pause, restarts};
}

absl::Time RestartPolicy::StartTime(absl::Time due, bool server, bool reported) {
  return server || reported ? due : due + kReportTimeout;
}

}  // namespace ballast
