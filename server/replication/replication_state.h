// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "ballast/v1/coordinator_service.pb.h"

namespace ballast {

// Owns the rules of a shard's replication: which standby follows it and how far, which changes wait for the standby,
// and what the coordinator is told. Invariant: in kMayTakeOver and kLostMayTakeOver, each change waits until the
// standby has acknowledged it. Deliberately knows no threads, clock or stream: it takes events and returns actions.
//
//   stage              event                                    next stage        actions
//   -----------------  ---------------------------------------  ----------------  ---------------------------------
//   any                SetTarget: another standby, or none      kNone             clear, release all; cancel if fed
//   kNone              BeginTransfer: still the target          kCatchingUp
//   kCatchingUp        OnResponse: the standby has all slices   kClosingUp        release acknowledged
//   kClosingUp         OnResponse: the mark is acknowledged     kInStep           release acknowledged, log, report
//   any that is fed    OnResponse: otherwise                                      release acknowledged
//   any that is fed    OnTime: more than the timeout                              cancel
//   kInStep            Report                                   kMayTakeOver
//   kMayTakeOver       OnStreamEnd                              kLostMayTakeOver  clear, log, report
//   kNone, other fed   OnStreamEnd: still the target            kLost             clear, release all, log, report
//   kNone              OnStreamEnd: no longer the target                          clear, release all, log, report
//   kLost...           OnHeartbeat: its loss was received       kNone             clear, release all
//   any                Close                                                      release all, with the reason
//
// Without a next stage, the stage stays. Fed are kCatchingUp, kClosingUp, kInStep and kMayTakeOver. The mark is the
// position of the last change when kClosingUp began; one response may lead from kCatchingUp to kInStep. Each stream
// begins its transfer once, in kNone, and ends once. Events that are not in the table change nothing.
// Thread safety: none; guarded by its journal.
class ReplicationState {
 public:
  enum class Stage {
    // No standby follows.
    kNone,
    kCatchingUp,
    // Changes wait for the standby to acknowledge them; earlier changes are still being sent.
    kClosingUp,
    // The standby has each acknowledged change; the coordinator does not know yet.
    kInStep,
    // The report that the standby is in step was, or is being, sent.
    kMayTakeOver,
    // The stream has ended, and the standby was never reported in step.
    kLost,
    // The stream has ended, but the standby may take over until the coordinator knows.
    kLostMayTakeOver,
  };

  // The journal cancels and clears under its lock; then, without it, it does the rest in this order.
  struct Actions {
    // Cancels the stream.
    bool cancel = false;
    // Responses that are held back are released; kClear also drops the queued changes.
    enum class Queue { kKeep, kRelease, kClear };
    Queue queue = Queue::kKeep;
    // Ends the waits for all positions up to this.
    uint64_t release = 0;
    // The status of all that is released.
    absl::Status status;
    // Line for the server's log, if not empty.
    std::string log;
    // Sends a heartbeat immediately.
    bool report_now = false;
  };

  // The event that a response to a change waits for.
  enum class Wait {
    kNothing,
    // The link must have carried most of the changes before this one.
    kLink,
    kAcknowledgment,
  };

  // A standby that is silent for longer than `timeout` is lost. `shard` is used in messages.
  ReplicationState(uint32_t shard, absl::Duration timeout) : shard_(shard), timeout_(timeout) {}

  // The shard has a job; it also has one once a change was appended.
  void BeginJob() { has_job_ = true; }
  // This process is the shard's server, with that incarnation.
  void BeginServing(uint64_t server) { server_ = server; }

  // The coordinator names the standby; incarnation 0: there is none, and none may take over.
  Actions SetTarget(const v1::StandbyTarget& target);
  // True if there is a standby to open a stream to, which TakeTarget returns.
  bool HasTarget() const { return has_job_ && server_ > 0 && next_target_.incarnation() > 0; }
  v1::StandbyTarget TakeTarget();

  // The stream to a taken target: it was opened; its transfer begins, unless the target has changed meanwhile; the
  // standby responded, `took` after the stream was opened; it ended, or could not be opened.
  Actions OnOpen(const v1::StandbyTarget& target);
  bool BeginTransfer(const v1::StandbyTarget& target);
  Actions OnResponse(uint64_t position, bool whole, absl::Duration took);
  Actions OnStreamEnd(const v1::StandbyTarget& target, const absl::Status& end);

  // The standby has processed nothing for that long although sent data is outstanding.
  Actions OnTime(absl::Duration silence);

  // Returns the report to send now, without byte counts. OnHeartbeat: the coordinator received that report.
  v1::StandbyReport Report();
  Actions OnHeartbeat(const v1::StandbyReport& report);

  // This process no longer serves the shard. The first reason counts.
  Actions Close(absl::Status reason);

  // Returns the position of a new change.
  uint64_t Append();
  Wait WaitOf(uint64_t position) const;

  // True while changes are queued for the standby.
  bool fed() const;
  Stage stage() const { return stage_; }
  uint64_t server() const { return server_; }
  // Position of the last change.
  uint64_t position() const { return position_; }
  const absl::Status& closed() const { return closed_; }

 private:
  bool IsCurrent(const v1::StandbyTarget& target) const;
  // True from the report that the standby is in step until the coordinator knows that it is lost.
  bool MayTakeOver() const { return stage_ == Stage::kMayTakeOver || stage_ == Stage::kLostMayTakeOver; }
  // The standby cannot take over from now on.
  Actions Drop();

  const uint32_t shard_;
  const absl::Duration timeout_;
  bool has_job_ = false;
  uint64_t server_ = 0;
  absl::Status closed_;
  // The next standby, and the current or last one. While there is a next one, the stage is kNone.
  v1::StandbyTarget next_target_;
  uint64_t standby_ = 0;
  Stage stage_ = Stage::kNone;
  uint64_t position_ = 0;
  // Valid from kClosingUp on.
  uint64_t acknowledged_ = 0;
  // The standby is in step once it has acknowledged this position.
  uint64_t mark_ = 0;
  // Why the last standby was lost.
  std::string reason_;
};

}  // namespace ballast
