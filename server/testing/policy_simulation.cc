// SPDX-License-Identifier: Apache-2.0
#include "server/testing/policy_simulation.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace ballast {
namespace {

// Above the number of events of any schedule, unless it loops.
constexpr uint64_t kMaxEvents = 100000;
constexpr uint64_t kLongestSchedule = 2000;

const char* NameOf(PushDisposition disposition) {
  return disposition == PushDisposition::kApplied    ? "applied"
         : disposition == PushDisposition::kBuffered ? "buffered"
                                                     : "dropped";
}

}  // namespace

// Subtracts whole numbers from the weights: the mean of whole numbers, whose scale was rounded, becomes whole again.
class PolicySimulation::RoundingSgd : public Optimizer {
 public:
  int slots() const override { return 0; }
  float LearningRate(uint64_t, std::optional<double>) const override { return 1; }
  void Apply(const OptimizerStep& step, const Gradient& gradient, const OptimizerState& state) const override {
    rate_ = step.learning_rate;
    gradient.ForEachBlock([&](size_t first, absl::Span<const float> block) {
      for (size_t i = 0; i < block.size(); ++i) {
        state.updated[first + i] = state.weights[first + i] - std::round(step.gradient_scale * block[i]);
      }
    });
  }
  float rate() const { return rate_; }
  void set_rate(float rate) { rate_ = rate; }

 private:
  mutable float rate_ = 1;
};

struct PolicySimulation::Place {
  Place(const v1::TensorSpec& spec, const v1::SliceRange& range, const Optimizer* optimizer,
        const v1::ConsistencyPolicy& policy, uint32_t workers, PolicyOracle::Tally* tally)
      : slice("w", range, std::make_unique<SliceWeights>(spec, range, optimizer), *MakeSlicePolicy(policy, workers)),
        oracle(policy, workers, tally) {}

  Slice slice;
  PolicyOracle oracle;
  // Learning rate of its last update.
  float rate = 1;
};

PolicySimulation::PolicySimulation(uint64_t seed, bool logs, PolicyOracle::Tally* tally)
    : seed_(seed), logs_(logs), random_(seed), optimizer_(std::make_unique<RoundingSgd>()), tally_(*tally) {
  constexpr uint64_t kDelays[] = {1, 5, 40, 200};
  longest_delay_ = kDelays[Below(4)];
  workers_.resize(1 + Below(8));
  DrawPolicy();
  v1::TensorSpec spec;
  spec.set_name("w");
  spec.add_shape(1);
  v1::SliceRange range;
  range.set_elements(1);
  const size_t slices = 1 + Below(4);
  for (size_t i = 0; i < slices; ++i) {
    places_.push_back(std::make_unique<Place>(spec, range, optimizer_.get(), policy_, workers_.size(), tally));
  }
  for (uint32_t rank = 0; rank < workers_.size(); ++rank) PlanWorker(rank);
  PlanOnlookers();
}

PolicySimulation::~PolicySimulation() = default;

void PolicySimulation::DrawPolicy() {
  switch (Below(6)) {
    case 0:
      policy_.mutable_sync()->set_deterministic(Chance(2));
      break;
    case 1:
      policy_.mutable_sync()->set_quorum(1 + Below(workers_.size()));
      policy_.mutable_sync()->set_deterministic(Chance(2));
      break;
    case 2:
      policy_.mutable_async()->set_scale_by_staleness(Chance(2));
      if (Chance(2)) policy_.mutable_async()->set_delay_compensation(0.001f);
      break;
    case 3:
    case 4:
      // A tighter bound reaches a cycle of waits sooner.
      policy_.mutable_bounded()->set_steps_ahead(Chance(2) ? 0 : Below(5));
      policy_.mutable_bounded()->set_scale_by_staleness(Chance(2));
      break;
    default:
      policy_.mutable_local_sgd()->set_local_steps(8);
      policy_.mutable_local_sgd()->set_learning_rate(0.1f);
      policy_.mutable_local_sgd()->set_deterministic(Chance(2));
  }
}

void PolicySimulation::PlanWorker(uint32_t rank) {
  Worker& worker = workers_[rank];
  worker.versions.resize(places_.size(), 0);
  worker.pace = Chance(4) ? 50 + Below(100) : 1 + Below(30);
  worker.returns_left = Below(5);
  const uint64_t losses = Chance(3) ? 1 + Below(2) : 0;
  for (uint64_t i = 0; i < losses; ++i) After(Below(kLongestSchedule / 2), [this, rank] { Lose(rank); });
  if (Chance(12)) {
    // The worker does not join at first; it may after it was declared lost.
    const bool comes = Chance(2);
    After(Below(kLongestSchedule / 2), [this, rank, comes] {
      GiveUp(rank, [this, rank, comes] {
        if (comes) Join(rank);
      });
    });
  } else {
    After(Chance(3) ? Below(kLongestSchedule / 4) : 0, [this, rank] { Join(rank); });
  }
}

void PolicySimulation::PlanOnlookers() {
  for (uint64_t i = Below(4); i > 0; --i) {
    const size_t place = Below(places_.size());
    const PullQuery pull{.step = Below(12)};
    After(Below(kLongestSchedule / 2), [this, place, pull] { Pull(place, pull, [](uint64_t) {}); });
  }
}

std::string PolicySimulation::Run() {
  while (!queue_.empty() && fault_.empty()) {
    const Event event = queue_.top();
    queue_.pop();
    now_ = event.time;
    event.happen();
    if (++events_ > kMaxEvents) Fail(absl::StrCat("still running after ", kMaxEvents, " events"));
  }
  for (const auto& [ticket, wait] : waits_) {
    if (!places_[wait.place]->oracle.MayWaitForEver(wait.pull)) {
      Fail(absl::StrCat("deadlock: no event is left, but a pull at step ", wait.pull.step, " of slice ", wait.place,
                        " still waits"));
    }
  }
  for (size_t i = 0; i < places_.size(); ++i) {
    places_[i]->oracle.Ended();
    Look(i);
  }
  for (uint32_t rank = 0; rank < workers_.size(); ++rank) {
    if (workers_[rank].up) Fail(absl::StrCat("worker ", rank, " never finished"));
  }
  return fault_;
}

std::string PolicySimulation::description() const {
  return absl::StrCat("seed ", seed_, ", ", workers_.size(), " workers, ", places_.size(), " slices, policy ",
                      policy_.ShortDebugString());
}

void PolicySimulation::After(uint64_t ticks, std::function<void()> happen) {
  // The order number breaks ties, so that a seed always gives the same schedule.
  queue_.push({now_ + ticks, next_order_++, std::move(happen)});
}

void PolicySimulation::AfterIn(uint32_t rank, uint64_t life, uint64_t ticks, std::function<void()> happen) {
  After(ticks, [this, rank, life, happen = std::move(happen)] {
    if (workers_[rank].life == life) happen();
  });
}

void PolicySimulation::Fail(const std::string& fault) {
  if (fault_.empty() && !fault.empty()) fault_ = absl::StrCat("at ", now_, ": ", fault);
}

void PolicySimulation::Join(uint32_t rank) {
  Worker& worker = workers_[rank];
  worker.up = true;
  worker.pushes_left = 1 + Below(Chance(2) ? 3 : 12);
  worker.answers_awaited = places_.size();
  Log("worker ", rank, " joins at step ", worker.step);
  for (size_t place = 0; place < places_.size(); ++place) {
    const uint64_t life = worker.life;
    const PullQuery pull{.step = worker.step, .worker = rank};
    AfterIn(rank, life, Delay(), [this, rank, life, place, pull] {
      Pull(place, pull, [this, rank, life, place](uint64_t version) {
        Hear(rank, life, place, version, [this, rank] { Ready(rank); });
      });
    });
  }
}

void PolicySimulation::Hear(uint32_t rank, uint64_t life, size_t place, std::optional<uint64_t> version,
                            std::function<void()> then) {
  AfterIn(rank, life, Delay(), [this, rank, place, version, then = std::move(then)] {
    Worker& worker = workers_[rank];
    if (version.has_value()) worker.versions[place] = *version;
    if (--worker.answers_awaited == 0) then();
  });
}

void PolicySimulation::Ready(uint32_t rank) {
  Worker& worker = workers_[rank];
  worker.full_step = worker.step;
  if (worker.pushes_left == 0) return PauseAll(rank);
  AfterIn(rank, worker.life, worker.pace + Below(worker.pace), [this, rank] { PushAll(rank); });
}

void PolicySimulation::PushAll(uint32_t rank) {
  Worker& worker = workers_[rank];
  --worker.pushes_left;
  worker.answers_awaited = places_.size();
  // The last push may come without a pull.
  const bool pulls = worker.pushes_left > 0 || Chance(2);
  const bool on_arrival = policy_.has_async() || policy_.has_bounded();
  const uint32_t examples = Chance(8) ? 0 : 64;
  for (size_t place = 0; place < places_.size(); ++place) {
    // 840 is divisible by each number of workers, so means are whole too.
    const float gradient = on_arrival ? 1 + Below(10) : 840 * (1 + Below(100));
    Send(rank, place, {rank, worker.step, examples, worker.versions[place], gradient}, pulls);
  }
  ++worker.step;
}

void PolicySimulation::Send(uint32_t rank, size_t place, const PolicyOracle::Push& push, bool pulls) {
  const uint64_t life = workers_[rank].life;
  After(Delay(), [this, rank, place, push, pulls, life] {
    // Messages that a worker sent before it was lost may arrive or not.
    if (workers_[rank].life != life && Chance(2)) return;
    Deliver(place, push);
    if (!fault_.empty()) return;
    if (!pulls) return Hear(rank, life, place, std::nullopt, [this, rank] { PauseAll(rank); });
    Pull(place, {.step = push.step + 1, .worker = rank}, [this, rank, life, place](uint64_t version) {
      Hear(rank, life, place, version, [this, rank] { Ready(rank); });
    });
  });
}

void PolicySimulation::PauseAll(uint32_t rank) {
  Worker& worker = workers_[rank];
  worker.answers_awaited = places_.size();
  const uint64_t life = worker.life;
  for (size_t place = 0; place < places_.size(); ++place) {
    AfterIn(rank, life, Delay(), [this, rank, life, place] {
      Pause(place, rank);
      Hear(rank, life, place, std::nullopt, [this, rank] {
        workers_[rank].up = false;
        if (workers_[rank].returns_left == 0) return;
        --workers_[rank].returns_left;
        ++tally_.returns;
        After(Below(kLongestSchedule / 4), [this, rank] { Join(rank); });
      });
    });
  }
}

void PolicySimulation::Lose(uint32_t rank) {
  Worker& worker = workers_[rank];
  if (!worker.up) return;
  ++tally_.losses;
  ++worker.life;
  worker.up = false;
  Log("worker ", rank, " is lost");
  const bool returns = Chance(2);
  GiveUp(rank, [this, rank, returns] {
    if (!returns) return;
    ++tally_.returns;
    Worker& lost = workers_[rank];
    lost.step = Chance(2) ? 0 : lost.full_step;
    Join(rank);
  });
}

void PolicySimulation::GiveUp(uint32_t rank, std::function<void()> then) {
  const uint64_t found_out = longest_delay_ + Below(100);
  for (size_t place = 0; place < places_.size(); ++place) {
    After(found_out + Delay(), [this, place, rank] { Pause(place, rank); });
  }
  After(found_out + longest_delay_ + 1 + Below(kLongestSchedule / 4), std::move(then));
}

PolicyOracle::Seen PolicySimulation::Look(size_t place) {
  Place& at = *places_[place];
  const PulledValues snapshot = at.slice.Pull(std::nullopt);
  Fail(at.oracle.fault().empty() ? "" : absl::StrCat("slice ", place, ": ", at.oracle.fault()));
  return {snapshot.version, snapshot.values.values()[0], at.rate};
}

void PolicySimulation::Deliver(size_t place, const PolicyOracle::Push& push) {
  Place& at = *places_[place];
  if (absl::Status status = at.slice.CheckStep(push.step); !status.ok()) {
    return Fail(absl::StrCat("worker ", push.worker, " was refused: ", status.message()));
  }
  const bool in_steps = policy_.has_sync() || policy_.has_local_sgd();
  if (in_steps && at.slice.CheckStep(Look(place).version + 1 + Below(3)).ok()) {
    return Fail("accepted a gradient for a step that cannot have begun");
  }
  optimizer_->set_rate(at.rate);
  const Slice::Applied applied =
      at.slice.Offer({.worker = push.worker, .step = push.step, .examples = push.examples}, push.from_version,
                     Gradient(absl::MakeConstSpan(&push.gradient, 1)), std::nullopt);
  at.rate = optimizer_->rate();
  Log("slice ", place, ": worker ", push.worker, " step ", push.step, " from ", push.from_version, " ",
      NameOf(applied.disposition));
  at.oracle.Offered(push, applied.disposition, Look(place));
  Release(place, applied.released);
}

void PolicySimulation::Pause(size_t place, uint32_t rank) {
  Place& at = *places_[place];
  const std::vector<WaitList::Ticket> released = at.slice.Pause(rank, std::nullopt);
  Log("slice ", place, ": worker ", rank, " pauses");
  at.oracle.Paused(rank, Look(place));
  Release(place, released);
}

void PolicySimulation::Pull(size_t place, const PullQuery& pull, std::function<void(uint64_t version)> answer) {
  const WaitList::Ticket ticket = next_ticket_++;
  if (places_[place]->slice.MayPullOrRelease(pull, ticket)) return Answer(place, pull, answer);
  ++tally_.waits;
  Log("slice ", place, ": a pull at step ", pull.step, " waits for ",
      absl::StrJoin(places_[place]->slice.Missing(pull), ", "));
  waits_[ticket] = {place, pull, std::move(answer)};
  Release(place, {});
}

void PolicySimulation::Answer(size_t place, const PullQuery& pull,
                              const std::function<void(uint64_t version)>& answer) {
  Place& at = *places_[place];
  const PulledValues snapshot = at.slice.Pull(pull.worker);
  at.oracle.Answered(pull, {snapshot.version, snapshot.values.values()[0], at.rate});
  Look(place);
  Log("slice ", place, ": answers step ", pull.step, " with version ", snapshot.version);
  answer(snapshot.version);
}

void PolicySimulation::Release(size_t place, const std::vector<WaitList::Ticket>& tickets) {
  for (WaitList::Ticket ticket : tickets) {
    const auto found = waits_.find(ticket);
    if (found == waits_.end()) return Fail("released a pull that does not wait");
    const Wait wait = std::move(found->second);
    waits_.erase(found);
    Answer(wait.place, wait.pull, wait.answer);
  }
  for (const auto& [ticket, wait] : waits_) {
    if (wait.place == place) places_[place]->oracle.Waits(wait.pull, places_[place]->slice.Missing(wait.pull));
  }
  Look(place);
}

}  // namespace ballast
