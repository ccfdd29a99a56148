// SPDX-License-Identifier: Apache-2.0
#include "server/policies/slice_policy.h"

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/tensors/tensor_spec_fixture.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

constexpr auto kApplied = PushDisposition::kApplied;
constexpr auto kBuffered = PushDisposition::kBuffered;
constexpr auto kDropped = PushDisposition::kDropped;
constexpr std::nullopt_t kReader = std::nullopt;

using Ranks = std::vector<uint32_t>;

// A policy and weights of two elements that start at 0, with a learning rate of 1.
struct Subject {
  Subject(const std::string& config, uint32_t workers) {
    v1::ConsistencyPolicy parsed;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(config, &parsed)) << config;
    policy = *MakeSlicePolicy(parsed, workers);
    const v1::TensorSpec spec = SgdSpec(0, "w", 2);
    optimizer = *MakeOptimizer(spec.optimizer());
    v1::SliceRange range;
    range.set_elements(2);
    weights = std::make_unique<SliceWeights>(spec, range, optimizer.get());
  }

  std::vector<float> values() const { return {weights->values().begin(), weights->values().end()}; }

  std::unique_ptr<SlicePolicy> policy;
  std::unique_ptr<Optimizer> optimizer;
  std::unique_ptr<SliceWeights> weights;
};

// Something that happens to a policy, with what it should return, or something to be true then.
using Event = std::function<void(Subject&)>;

// Without `want`, the disposition does not matter.
Event Offer(uint32_t worker, uint64_t step, uint32_t examples, std::vector<float> gradient,
            std::optional<PushDisposition> want = std::nullopt) {
  return [=](Subject& on) {
    const auto got =
        on.policy->Offer({.worker = worker, .step = step, .examples = examples}, 0, Gradient(gradient), *on.weights);
    EXPECT_EQ(got, want.value_or(got));
  };
}

// A contribution of one example with two equal elements.
Event OfferFrom(uint32_t worker, uint64_t step, uint64_t from_version, float gradient,
                std::optional<PushDisposition> want = std::nullopt) {
  return [=](Subject& on) {
    const std::vector<float> both = {gradient, gradient};
    const auto got =
        on.policy->Offer({.worker = worker, .step = step, .examples = 1}, from_version, Gradient(both), *on.weights);
    EXPECT_EQ(got, want.value_or(got));
  };
}

// The steps from `first` to `last` of these workers, whose gradients are 1.
Event Steps(const Ranks& workers, uint64_t first, uint64_t last) {
  return [=](Subject& on) {
    for (uint64_t step = first; step <= last; ++step) {
      for (const uint32_t worker : workers) OfferFrom(worker, step, step, 1)(on);
    }
  };
}

Event Pause(uint32_t worker, bool applies = false) {
  return [=](Subject& on) { EXPECT_EQ(on.policy->Pause(worker, *on.weights), applies); };
}

Event CatchUp(uint32_t worker, uint64_t version, uint64_t finished) {
  return [=](Subject& on) { on.policy->CatchUp(worker, version, finished, *on.weights); };
}

Event OnPull(uint32_t worker) {
  return [=](Subject& on) { on.policy->OnPull(worker, *on.weights); };
}

Event MayPull(std::optional<uint32_t> worker, uint64_t step, bool may = true) {
  return [=](Subject& on) { EXPECT_EQ(on.policy->MayPull({.step = step, .worker = worker}, *on.weights), may); };
}

Event MustWait(std::optional<uint32_t> worker, uint64_t step) { return MayPull(worker, step, false); }

Event Missing(std::optional<uint32_t> worker, uint64_t step, const Ranks& ranks) {
  return [=](Subject& on) { EXPECT_EQ(on.policy->Missing({.step = step, .worker = worker}), ranks); };
}

Event CheckStep(uint64_t step, absl::StatusCode code) {
  return [=](Subject& on) { EXPECT_EQ(on.policy->CheckStep(step, *on.weights).code(), code); };
}

Event Values(float first, float second) {
  return [=](Subject& on) { EXPECT_EQ(on.values(), (std::vector<float>{first, second})); };
}

Event Versions(uint64_t version, uint64_t applied) {
  return [=](Subject& on) {
    EXPECT_EQ(on.weights->version(), version);
    EXPECT_EQ(on.weights->applied(), applied);
  };
}

struct Case {
  Case(std::string name, std::string policy, uint32_t workers, std::vector<Event> events)
      : name(std::move(name)), policy(std::move(policy)), workers(workers), events(std::move(events)) {}

  std::string name, policy;
  uint32_t workers;
  std::vector<Event> events;

  friend void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }
};

class SlicePolicyCaseTest : public testing::TestWithParam<Case> {};

TEST_P(SlicePolicyCaseTest, Holds) {
  Subject subject(GetParam().policy, GetParam().workers);
  for (size_t i = 0; i < GetParam().events.size(); ++i) {
    SCOPED_TRACE(absl::StrCat("event ", i));
    GetParam().events[i](subject);
  }
}

constexpr char kInOrder[] = "sync { deterministic: true }";
constexpr auto kOk = absl::StatusCode::kOk;
constexpr auto kRefused = absl::StatusCode::kFailedPrecondition;

const std::vector<Case> kSyncCases = {
    Case("SyncAppliesTheMeanOnceAllWorkersAreIn", kInOrder, 2,
         {Offer(1, 0, 64, {2, 4}, kBuffered), Values(0, 0), MustWait(kReader, 1), Missing(kReader, 1, {0}),
          Offer(0, 0, 64, {4, 0}, kApplied), Values(-3, -2), MayPull(kReader, 1)}),
    Case("SyncWeighsTheMeanByExamples", kInOrder, 2, {Offer(0, 0, 3, {4, 0}), Offer(1, 0, 1, {0, 8}), Values(-3, -2)}),
    Case("SyncTakesAWorkerWithoutExamplesIntoTheStep", kInOrder, 2,
         {Offer(0, 0, 8, {1, 1}, kBuffered), Offer(1, 0, 0, {}, kApplied), Values(-1, -1)}),
    Case("SyncStepWithoutAnyExampleMovesTheClockOnly", kInOrder, 2,
         {Offer(0, 0, 0, {}), Offer(1, 0, 0, {}, kApplied), Values(0, 0),
          [](Subject& on) { EXPECT_EQ(on.weights->version(), 1); }}),
    Case("SyncDropsWhatComesTooLateOrTwice", kInOrder, 2,
         {Offer(0, 0, 1, {1, 1}), Offer(0, 0, 1, {9, 9}, kDropped), Offer(1, 0, 1, {1, 1}),
          Offer(1, 0, 1, {9, 9}, kDropped), Values(-1, -1)}),
    Case("SyncRefusesAStepWhoseUpdateBeforeIsMissing", kInOrder, 2, {CheckStep(0, kOk), CheckStep(1, kRefused)}),
    Case("DeterministicSyncGivesAGradientAloneTheSameBitsInEveryOrderOfArrival", kInOrder, 2,
         {Offer(0, 0, 7, {0.1f, 0.3f}), Offer(1, 0, 0, {}), Values(-0.1f, -0.3f), Offer(1, 1, 0, {}),
          Offer(0, 1, 7, {-0.1f, -0.3f}), Values(0, 0)}),
    Case("SyncOfOneWorkerAppliesTheGradientAsItIs", kInOrder, 1,
         {Offer(0, 0, 7, {0.1f, 0.3f}, kApplied), Values(-0.1f, -0.3f)}),
    Case("SyncWithAQuorumAppliesTheMeanOfThoseThatAreIn", "sync { quorum: 2 }", 3,
         {Offer(2, 0, 3, {4, 0}, kBuffered), Missing(kReader, 1, {0, 1}), Offer(0, 0, 1, {0, 8}, kApplied),
          Values(-3, -2)}),
    Case("SyncDropsWhatComesAfterItsQuorum", "sync { quorum: 2 }", 3,
         {Offer(0, 0, 1, {1, 1}), Offer(1, 0, 1, {1, 1}), CheckStep(0, kOk), Offer(2, 0, 1, {9, 9}, kDropped),
          Values(-1, -1), MayPull(2, 1)}),
    // A worker counts once per step.
    Case("AWorkerThatFellBehindTakesPartWithAGradientOfTheNewestValues", "sync { quorum: 2 }", 3,
         {Steps({0, 1}, 0, 2), OfferFrom(2, 0, 0, 9, kDropped), OfferFrom(2, 1, 3, 4, kBuffered),
          OfferFrom(2, 2, 3, 9, kDropped), OfferFrom(0, 3, 3, 2, kApplied), Values(-6, -6)}),
    Case("SyncDoesNotWaitForWhoHasPaused", kInOrder, 3,
         {Pause(1), Offer(2, 0, 1, {2, 2}, kBuffered), Missing(kReader, 1, {0}), Offer(0, 0, 1, {4, 4}, kApplied),
          Values(-3, -3)}),
    Case("APauseClosesTheStepOfThoseThatAreIn", kInOrder, 3,
         {Offer(2, 0, 1, {2, 2}), Pause(0), Pause(1, /*applies=*/true), Values(-2, -2), MayPull(2, 1)}),
    Case("AContributionCountsThoughItsWorkerPausesAfterIt", kInOrder, 2,
         {Offer(0, 0, 1, {2, 2}), Pause(0), Offer(1, 0, 1, {4, 4}, kApplied), Values(-3, -3)}),
    Case("WhereAllHavePausedNoStepPasses", kInOrder, 2, {Pause(0), Pause(1), Versions(0, 0)}),
    Case("SyncWaitsAgainForAWorkerThatReturns", kInOrder, 2,
         {Pause(1), Steps({0}, 0, 1), OfferFrom(1, 0, 0, 9, kDropped), OfferFrom(0, 2, 2, 1, kBuffered),
          Missing(0, 3, {1}), OfferFrom(1, 1, 2, 3, kApplied), Values(-4, -4)}),
    Case("APullOfALaterStepWaitsAgainForThoseThatAreIn", kInOrder, 2,
         {Offer(0, 0, 1, {1, 1}), Missing(kReader, 1, {1}), Missing(kReader, 2, {0, 1})}),
    // Three updates are lost: the workers have seen version 3, the slice is at 0. The second offer of worker 0 is a
    // retry for a step that is over. Then worker 1's gradient for step 3 was accepted, without an update, and is lost;
    // the update is the mean of the two that arrived.
    Case("AStepGoesOnWithoutGradientsThatWereTakenAndLost", kInOrder, 3,
         {CatchUp(1, 3, 3), Versions(3, 0), MayPull(0, 3), OfferFrom(0, 2, 2, 1, kDropped), CatchUp(1, 3, 4),
          Missing(0, 4, {0, 2}), OfferFrom(0, 3, 3, 2), OfferFrom(2, 3, 3, 4, kApplied), Versions(4, 1), Values(-3, -3),
          CatchUp(1, 3, 4), Versions(4, 1)}),
    // Worker 0's gradient for step 0 is lost, although it has seen the update.
    Case("GradientsOfAStepThatOthersHaveSeenOverAreUsedAllTheSame", kInOrder, 2,
         {OfferFrom(1, 0, 0, 5, kBuffered), CatchUp(0, 1, 1), Versions(1, 1), Values(-5, -5), MayPull(1, 1)}),
    Case("LocalSgdAveragesTheRoundsOfAllWorkers", "local_sgd { local_steps: 8 learning_rate: 0.1 deterministic: true }",
         2,
         {Offer(1, 0, 1, {2, 4}, kBuffered), Missing(kReader, 1, {0}), Offer(0, 0, 1, {4, 0}, kApplied),
          Values(-3, -2)}),
};

const std::vector<Case> kAsyncCases = {
    Case("AsyncAppliesOnArrivalAndNeverWaits", "async { }", 4,
         {Offer(3, 17, 64, {1, 2}, kApplied), Values(-1, -2), MayPull(kReader, 99), Missing(kReader, 1, {})}),
    // The last update is 8 / (1 + 3).
    Case("AsyncDividesTheRateByOnePlusStaleness", "async { scale_by_staleness: true }", 2,
         {Steps({0}, 0, 2), Values(-3, -3), OfferFrom(1, 0, 0, 8), Values(-5, -5)}),
    Case("AsyncWithoutScalingTakesAStaleGradientAsItIs", "async { }", 2,
         {OfferFrom(0, 0, 0, 1), OfferFrom(1, 0, 0, 8), Values(-9, -9)}),
    // w is -2 and was 0: 4 + 0.5 * 4 * 4 * -2 = -12. Then w is 10 and was -1: 2 + 0.5 * 2 * 2 * 11 = 24.
    Case("DelayCompensationCountsFromWhatTheWorkerWasHandedLast", "async { delay_compensation: 0.5 }", 2,
         {OnPull(1), OfferFrom(0, 0, 0, 1), OnPull(0), OfferFrom(0, 1, 1, 1), OfferFrom(1, 0, 0, 4), Values(10, 10),
          OfferFrom(0, 2, 1, 2), Values(-14, -14)}),
    Case("DelayCompensationLeavesFreshGradientsAndWorkersThatNeverPulled", "async { delay_compensation: 0.5 }", 3,
         {OnPull(0), OfferFrom(0, 0, 0, 1), Values(-1, -1), OfferFrom(1, 0, 0, 1), Values(-2, -2)}),
    Case("DelayCompensationIgnoresPullsOfRanksThatTheJobLacks", "async { delay_compensation: 0.5 }", 1,
         {OnPull(7), OfferFrom(0, 0, 0, 1), Values(-1, -1)}),
};

const std::vector<Case> kBoundedCases = {
    Case("BoundedAppliesOnArrival", "bounded { steps_ahead: 2 }", 2,
         {OfferFrom(0, 0, 0, 1, kApplied), OfferFrom(1, 0, 0, 2, kApplied), Values(-3, -3)}),
    Case("BoundedLetsNobodyPullFurtherThanTheBoundAheadOfTheSlowest", "bounded { steps_ahead: 2 }", 3,
         {Steps({0}, 0, 2), MayPull(0, 2), MustWait(0, 3), MustWait(kReader, 3), Missing(0, 3, {1, 2}),
          OfferFrom(1, 0, 0, 1), Missing(0, 3, {2}), OfferFrom(2, 0, 0, 1), MayPull(0, 3)}),
    Case("BoundedDividesTheRateByOnePlusStalenessWhereAsked", "bounded { steps_ahead: 2 scale_by_staleness: true }", 2,
         {OfferFrom(0, 0, 0, 1), OfferFrom(1, 0, 0, 8), Values(-5, -5)}),
    Case("BoundedDoesNotWaitForWhoHasPaused", "bounded { steps_ahead: 0 }", 3,
         {OfferFrom(0, 0, 0, 1), OfferFrom(1, 0, 1, 1), MustWait(0, 1), Pause(2), MayPull(0, 1), Missing(0, 1, {})}),
    Case("BoundedWaitsForNobodyWhereAllHavePaused", "bounded { steps_ahead: 0 }", 2,
         {Pause(0), MustWait(0, 5), Pause(1), MayPull(0, 5)}),
    // The returned worker's clock is 10, not 1, and 11 after its second step.
    Case("AWorkerThatReturnsGoesOnAtTheClockOfTheSlowest", "bounded { steps_ahead: 1 }", 3,
         {Pause(2), Steps({0, 1}, 0, 9), OfferFrom(2, 0, 0, 1), MayPull(0, 11), MustWait(0, 12),
          Missing(0, 12, {0, 1, 2}), OfferFrom(2, 1, 0, 1), Missing(0, 12, {0, 1})}),
    // The slowest was at 10, so the clock is 12, not 10 + 7. The bound applies to the worker's own count.
    Case("AWorkerThatCatchesUpWaitsForNobodyAndGetsNoLeadByIt", "bounded { steps_ahead: 1 }", 2,
         {Pause(1), Steps({0}, 0, 9), Steps({1}, 0, 7), MayPull(1, 8), Steps({0}, 10, 12), MayPull(0, 13),
          MustWait(0, 14), Missing(0, 14, {1}), MustWait(1, 14)}),
    Case("AWorkerThatReturnsAheadKeepsItsClock", "bounded { steps_ahead: 3 }", 2,
         {Steps({0}, 0, 2), Pause(0), OfferFrom(1, 0, 0, 1), OfferFrom(0, 3, 0, 1), MayPull(0, 4), MustWait(0, 5)}),
    // Worker 1 restarted; 6 steps are finished at the end.
    Case("TheSlowestClockStandsWhileNobodyTakesPart", "bounded { steps_ahead: 0 }", 2,
         {Steps({0, 1}, 0, 4), Pause(0), Pause(1), OfferFrom(1, 0, 0, 1), OfferFrom(0, 5, 0, 1), Missing(0, 6, {1}),
          OfferFrom(1, 1, 0, 1), MayPull(0, 6)}),
    // Both lost the same nine steps, and would otherwise wait for each other; at first one has not reported it.
    Case(
        "BoundedWorkersAreWhereTheySayThatTheyAre", "bounded { steps_ahead: 1 }", 2,
        {Steps({0, 1}, 0, 0), MustWait(0, 10), MustWait(1, 10), CatchUp(1, 19, 10), MustWait(1, 10), CatchUp(0, 20, 10),
         MayPull(0, 10), MayPull(1, 11), MustWait(1, 12), [](Subject& on) { EXPECT_EQ(on.weights->version(), 20); }}),
    Case("BoundedRefusesStepsThatNoJobReaches", "bounded { steps_ahead: 0 }", 2,
         {CheckStep(1000000000, kOk), CheckStep(~uint64_t{0}, kRefused), MustWait(0, ~uint64_t{0})}),
};

std::string NameOf(const testing::TestParamInfo<Case>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Sync, SlicePolicyCaseTest, testing::ValuesIn(kSyncCases), NameOf);
INSTANTIATE_TEST_SUITE_P(Async, SlicePolicyCaseTest, testing::ValuesIn(kAsyncCases), NameOf);
INSTANTIATE_TEST_SUITE_P(Bounded, SlicePolicyCaseTest, testing::ValuesIn(kBoundedCases), NameOf);

TEST(SlicePolicyTest, DeterministicSyncGivesTheSameBitsInEveryOrderOfArrival) {
  const std::vector<std::vector<float>> gradients = {{1e8f, 0.1f}, {-1e8f, 0.2f}, {1.0f, 0.3f}};
  const std::vector<Ranks> orders = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
  Subject subject(kInOrder, 3);
  for (uint64_t step = 0; step < orders.size(); ++step) {
    const std::vector<float> before = subject.values();
    for (uint32_t rank : orders[step]) Offer(rank, step, 7, gradients[rank])(subject);
    // ((1e8 - 1e8) + 1) / 3 only in rank order; any other order loses the 1.
    EXPECT_FLOAT_EQ(before[0] - subject.values()[0], 1.0f / 3) << step;
    EXPECT_FLOAT_EQ(before[1] - subject.values()[1], 0.2f) << step;
  }
}

TEST(SlicePolicyTest, DeterministicSyncFoldsAQuorumInRankOrder) {
  const std::vector<float> gradients = {0, 1e8f, -1e8f, 1.0f};
  Subject subject("sync { deterministic: true quorum: 3 }", 4);
  uint64_t step = 0;
  for (const Ranks& order : {Ranks{1, 2, 3}, Ranks{3, 2, 1}, Ranks{3, 1, 2}}) {
    const float before = subject.values()[0];
    for (uint32_t rank : order) OfferFrom(rank, step, step, gradients[rank])(subject);
    EXPECT_FLOAT_EQ(before - subject.values()[0], 1.0f / 3) << step;
    ++step;
  }
}

TEST(SlicePolicyTest, NoReportTakesASliceToAVersionThatNoJobReaches) {
  for (const char* config : {"sync {}", "async {}", "bounded {}"}) {
    Subject subject(config, 2);
    CatchUp(0, ~uint64_t{0}, ~uint64_t{0})(subject);
    EXPECT_LE(subject.weights->version(), SliceWeights::kMostSkipped + 1) << config;
  }
}

TEST(SlicePolicyTest, CountsTheGradientsThatWaitForTheirStep) {
  Subject subject("sync { deterministic: true }", 3);
  EXPECT_EQ(subject.policy->Bytes(), 0u);
  Offer(2, 0, 1, {1, 2}, kBuffered)(subject);
  EXPECT_EQ(subject.policy->Bytes(), 8u) << "a copy";
  Offer(0, 0, 1, {1, 2}, kBuffered)(subject);
  EXPECT_EQ(subject.policy->Bytes(), 16u) << "a copy and the sum";
  Subject restored("sync { deterministic: true }", 3);
  ASSERT_TRUE(restored.policy->Restore(subject.policy->Save(), *restored.weights).ok());
  EXPECT_EQ(restored.policy->Bytes(), 16u);
  Offer(1, 0, 1, {1, 2}, kApplied)(subject);
  EXPECT_EQ(subject.policy->Bytes(), 8u) << "the sum's memory is kept for the next step, the copy's is not";
  Offer(2, 1, 1, {1, 2}, kBuffered)(subject);
  EXPECT_EQ(subject.policy->Bytes(), 16u);
}

TEST(SlicePolicyTest, CountsTheValuesKeptForDelayCompensation) {
  Subject subject("async { delay_compensation: 0.1 }", 2);
  subject.policy->OnPull(0, *subject.weights);
  subject.policy->OnPull(0, *subject.weights);
  EXPECT_EQ(subject.policy->Bytes(), 8u);
  subject.policy->OnPull(1, *subject.weights);
  EXPECT_EQ(subject.policy->Bytes(), 16u);
}

TEST(SlicePolicyTest, RefusesAPolicyWithoutAKind) {
  EXPECT_EQ(MakeSlicePolicy({}, 1).status().message(), "policy: got nothing, want sync, async, bounded or local_sgd");
}

TEST(SlicePolicyTest, RefusesAQuorumOfMoreThanTheWorkers) {
  v1::ConsistencyPolicy config;
  config.mutable_sync()->set_quorum(3);
  EXPECT_EQ(MakeSlicePolicy(config, 2).status().message(),
            "policy.sync.quorum: got 3, want 1 to the number of workers, 2, or 0 for all of them");
}

}  // namespace

}  // namespace ballast
