// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/tensors/slice.h"
#include "server/testing/policy_oracle.h"
#include "server/weights/optimizers/optimizer.h"

namespace ballast {

// Owns the simulation of one job at a few slices, drawn from a seed: a policy; workers of different speed that join
// late or never, pause, return, are lost and restart; messages with different delays per slice; and readers that
// pull. The slices are real; clock, network and workers are events in one queue. An oracle checks each slice.
//
// Assumptions: a push is not delivered twice; a worker pauses after its pushes are acknowledged, and returns after
// its pause is; a lost worker's last messages arrive before it is declared lost, or never. Thread safety: none; it
// uses no threads.
class PolicySimulation {
 public:
  // With `logs`, records all events in log(). `tally` must outlive this.
  PolicySimulation(uint64_t seed, bool logs, PolicyOracle::Tally* tally);
  ~PolicySimulation();

  // Runs until no event is left. Returns the first broken promise and its time; empty if all were kept.
  std::string Run();

  const std::string& log() const { return log_; }
  std::string description() const;

 private:
  class RoundingSgd;
  struct Place;
  struct Worker {
    bool up = false;
    // Incremented when the worker is lost; messages to and from an earlier life are dropped.
    uint64_t life = 0;
    uint64_t pace = 1;
    // The next step to push, and the last step whose values the worker pulled completely.
    uint64_t step = 0, full_step = 0;
    std::vector<uint64_t> versions;
    size_t answers_awaited = 0;
    // Pushes until it pauses, and the number of later returns.
    uint64_t pushes_left = 0, returns_left = 0;
  };
  struct Wait {
    size_t place = 0;
    PullQuery pull;
    std::function<void(uint64_t version)> answer;
  };
  struct Event {
    uint64_t time = 0, order = 0;
    std::function<void()> happen;
    friend bool operator>(const Event& a, const Event& b) {
      return a.time != b.time ? a.time > b.time : a.order > b.order;
    }
  };

  uint64_t Below(uint64_t bound) { return random_() % bound; }
  bool Chance(uint64_t one_in) { return Below(one_in) == 0; }
  void After(uint64_t ticks, std::function<void()> happen);
  // Nothing happens if the worker has lost that life by then.
  void AfterIn(uint32_t rank, uint64_t life, uint64_t ticks, std::function<void()> happen);
  uint64_t Delay() { return 1 + Below(longest_delay_); }
  template <typename... Parts>
  void Log(const Parts&... parts) {
    if (logs_) absl::StrAppend(&log_, now_, ": ", parts..., "\n");
  }
  void Fail(const std::string& fault);

  void DrawPolicy();
  void PlanWorker(uint32_t rank);
  void PlanOnlookers();

  // Events of a worker.
  void Join(uint32_t rank);
  void Ready(uint32_t rank);
  void PushAll(uint32_t rank);
  void Send(uint32_t rank, size_t place, const PolicyOracle::Push& push, bool pulls);
  void Hear(uint32_t rank, uint64_t life, size_t place, std::optional<uint64_t> version, std::function<void()> then);
  void PauseAll(uint32_t rank);
  void Lose(uint32_t rank);
  void GiveUp(uint32_t rank, std::function<void()> then);

  // Events at a slice.
  void Deliver(size_t place, const PolicyOracle::Push& push);
  void Pause(size_t place, uint32_t rank);
  void Pull(size_t place, const PullQuery& pull, std::function<void(uint64_t version)> answer);
  void Answer(size_t place, const PullQuery& pull, const std::function<void(uint64_t version)>& answer);
  void Release(size_t place, const std::vector<WaitList::Ticket>& tickets);
  PolicyOracle::Seen Look(size_t place);

  const uint64_t seed_;
  const bool logs_;
  std::mt19937_64 random_;
  v1::ConsistencyPolicy policy_;
  uint64_t longest_delay_ = 1;
  uint64_t now_ = 0, events_ = 0, next_order_ = 0;
  std::priority_queue<Event, std::vector<Event>, std::greater<Event>> queue_;
  std::unique_ptr<RoundingSgd> optimizer_;
  std::vector<std::unique_ptr<Place>> places_;
  std::vector<Worker> workers_;
  WaitList::Ticket next_ticket_ = 1;
  std::map<WaitList::Ticket, Wait> waits_;
  PolicyOracle::Tally& tally_;
  std::string fault_, log_;
};

}  // namespace ballast
