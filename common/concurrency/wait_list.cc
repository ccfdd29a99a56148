// SPDX-License-Identifier: Apache-2.0
#include "common/concurrency/wait_list.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "common/concurrency/named_thread.h"
#include "common/status/error_reason.h"

namespace ballast {

WaitList::WaitList(const Clock* clock)
    : clock_(clock), sweeper_(NamedThread("wait deadlines", [this] { SweepUntilStopped(); })) {}

WaitList::~WaitList() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.Signal();
  }
  sweeper_.join();
  EndAll(absl::CancelledError("the server is stopping"));
}

WaitList::Wait WaitList::TakeLocked(std::map<Ticket, Wait>::iterator wait) {
  by_deadline_.erase({wait->second.deadline, wait->first});
  Wait taken = std::move(wait->second);
  waits_.erase(wait);
  return taken;
}

WaitList::Ticket WaitList::Add(absl::Time deadline, Release release, Explain explain, Done done) {
  absl::MutexLock lock(&mutex_);
  const Ticket ticket = next_++;
  // The list's own thread ends it, because the caller may hold a lock that `done` takes.
  if (!closed_.ok()) deadline = absl::InfinitePast();
  waits_.emplace(ticket, Wait{clock_->Now(), deadline, std::make_shared<const Release>(std::move(release)),
                              std::move(explain), std::move(done)});
  by_deadline_.emplace(deadline, ticket);
  if (deadline < looks_at_) {
    looks_at_ = deadline;
    changed_.Signal();
  }
  return ticket;
}

void WaitList::CountDown(Ticket ticket, Cause cause) {
  std::shared_ptr<const Release> release;
  {
    absl::MutexLock lock(&mutex_);
    const auto wait = waits_.find(ticket);
    if (wait == waits_.end()) return;
    release = wait->second.release;
  }
  if ((*release)(ticket, cause)) End(ticket, absl::OkStatus());
}

void WaitList::End(Ticket ticket, absl::Status status) {
  Wait ended;
  {
    absl::MutexLock lock(&mutex_);
    auto wait = waits_.find(ticket);
    if (wait == waits_.end()) return;
    ended = TakeLocked(wait);
  }
  ended.done(std::move(status));
}

void WaitList::EndAll(const absl::Status& status) {
  std::map<Ticket, Wait> ended;
  {
    absl::MutexLock lock(&mutex_);
    ended.swap(waits_);
    by_deadline_.clear();
  }
  for (auto& [ticket, wait] : ended) wait.done(status);
}

void WaitList::Close(const absl::Status& reason) {
  {
    absl::MutexLock lock(&mutex_);
    closed_ = reason;
  }
  EndAll(reason);
}

void WaitList::Sweep() {
  std::vector<Wait> ended;
  absl::Status closed;
  {
    absl::MutexLock lock(&mutex_);
    closed = closed_;
    const absl::Time now = clock_->Now();
    while (!by_deadline_.empty() && by_deadline_.begin()->first <= now) {
      ended.push_back(TakeLocked(waits_.find(by_deadline_.begin()->second)));
    }
  }
  for (Wait& wait : ended) {
    if (!closed.ok()) {
      wait.done(closed);
      continue;
    }
    wait.done(WithReason(v1::ERROR_REASON_WAIT_TIMEOUT, absl::DeadlineExceededError(wait.explain())));
  }
}

void WaitList::SweepUntilStopped() {
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      if (stopping_) return;
      looks_at_ = by_deadline_.empty() ? absl::InfiniteFuture() : by_deadline_.begin()->first;
      const absl::Duration left = by_deadline_.empty() ? absl::InfiniteDuration() : looks_at_ - clock_->Now();
      if (left > absl::ZeroDuration()) {
        changed_.WaitWithTimeout(&mutex_, left);
        if (stopping_) return;
      }
    }
    Sweep();
  }
}

size_t WaitList::size() const {
  absl::MutexLock lock(&mutex_);
  return waits_.size();
}

std::optional<WaitList::Oldest> WaitList::oldest() const {
  absl::Time begin;
  Explain explain;
  {
    absl::MutexLock lock(&mutex_);
    if (waits_.empty()) return std::nullopt;
    // Tickets ascend.
    begin = waits_.begin()->second.begin;
    explain = waits_.begin()->second.explain;
  }
  return Oldest{std::max(clock_->Now() - begin, absl::ZeroDuration()), explain()};
}

}  // namespace ballast
