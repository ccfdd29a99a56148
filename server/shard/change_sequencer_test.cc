// SPDX-License-Identifier: Apache-2.0
#include "server/shard/change_sequencer.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/concurrency/clock.h"
#include "common/status/error_reason.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

// A journal in memory, in which every record is durable at once.
class FakeJournal : public ShardJournal {
 public:
  absl::StatusOr<uint64_t> Append(const internal::v1::ShardRecord& record, absl::Span<const absl::string_view> behind,
                                  absl::FunctionRef<bool()> admit, absl::FunctionRef<void()> in_order) override {
    if (!admit()) return 0;
    if (!status.ok()) return status;
    std::string text = record.ShortDebugString();
    for (absl::string_view piece : behind) absl::StrAppend(&text, " ", piece);
    records.push_back(std::move(text));
    in_order();
    return records.size();
  }
  void AwaitDurable(uint64_t position, std::function<void(absl::Status)> done) override {
    awaited.emplace_back("durable", position);
    done(status);
  }
  void AwaitSynced(uint64_t position, std::function<void(absl::Status)> done) override {
    awaited.emplace_back("synced", position);
    done(status);
  }
  std::optional<LogStatus> log() const override { return std::nullopt; }

  absl::Status status;
  std::vector<std::string> records;
  std::vector<std::pair<std::string, uint64_t>> awaited;
};

// Changes that worker 2 makes to numbered parts.
class ChangeSequencerTest : public testing::Test {
 protected:
  // A part that was changed, and the change's place there; -1 for none.
  using Applied = std::pair<size_t, int>;

  void Record() {
    ChangeSequencer::AtRest rest(changes_);
    changes_.set_journal(&journal_);
  }

  void Note(const std::vector<size_t>& parts, const ChangeSequencer::Places& places) {
    for (size_t i = 0; i < parts.size(); ++i) {
      applied_.emplace_back(parts[i], places[i].has_value() ? static_cast<int>(*places[i]) : -1);
    }
  }

  absl::StatusOr<PushOutcome> Push(uint64_t incarnation, uint64_t sequence, std::vector<size_t> parts) {
    const auto describe = [&] {
      JournalEntry entry;
      entry.record.mutable_push()->set_sequence(sequence);
      entry.payloads = {"pay", "load"};
      entry.parts = parts.size();
      return entry;
    };
    return changes_.Push(
        {2, incarnation, &window_}, sequence, describe, [&](size_t i) { return next_[parts[i]]++; },
        [&](const auto& places, auto& released) {
          Note(parts, places);
          released = std::exchange(releases_, {});
          return PushOutcome{.applied = static_cast<uint32_t>(parts.size())};
        });
  }

  absl::Status Pause(uint64_t incarnation, std::vector<size_t> parts) {
    const auto describe = [&] {
      JournalEntry entry;
      entry.record.mutable_pause()->set_incarnation(incarnation);
      entry.parts = parts.size();
      return entry;
    };
    return changes_.Make(
        {2, incarnation, &window_}, describe, [&](size_t i) { return next_[parts[i]]++; },
        [&](const auto& places, auto&) { Note(parts, places); });
  }

  FakeJournal journal_;
  ManualClock clock_;
  WaitList waits_{&clock_};
  ChangeSequencer changes_{3, &waits_};
  PushWindow window_;
  std::vector<uint64_t> next_ = std::vector<uint64_t>(4);
  std::vector<Applied> applied_;
  ChangeSequencer::Released releases_;
};

TEST_F(ChangeSequencerTest, ChangesAreRecordedAndHaveTheirPlacesInTheSameOrder) {
  Record();
  EXPECT_EQ(Push(1, 1, {0, 1})->position, 1);
  EXPECT_EQ(Pause(1, {1, 2}), absl::OkStatus());
  EXPECT_EQ(Push(1, 2, {2, 1})->position, 3);
  EXPECT_EQ(journal_.records, (std::vector<std::string>{"push { sequence: 1 } pay load", "pause { incarnation: 1 }",
                                                        "push { sequence: 2 } pay load"}));
  EXPECT_EQ(applied_, (std::vector<Applied>{{0, 0}, {1, 0}, {1, 1}, {2, 0}, {2, 1}, {1, 2}}));
}

TEST_F(ChangeSequencerTest, APushIsMadeOnceWhateverItChanges) {
  Record();
  EXPECT_FALSE(Push(1, 1, {0, 1})->duplicate);
  // Another kind of state that shares the worker's sequence numbers.
  const absl::StatusOr<PushOutcome> again = Push(1, 1, {3});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(again->duplicate);
  EXPECT_EQ(again->applied, 2);
  EXPECT_EQ(again->position, 1);
  EXPECT_EQ(journal_.records.size(), 1);
  EXPECT_EQ(applied_.size(), 2);
}

TEST_F(ChangeSequencerTest, WithoutAJournalAChangeHasNoPlaceAndNothingToWaitFor) {
  EXPECT_EQ(Push(1, 1, {0})->position, 0);
  EXPECT_EQ(Pause(1, {1}), absl::OkStatus());
  EXPECT_EQ(applied_, (std::vector<Applied>{{0, -1}, {1, -1}}));
  absl::Status durable = absl::UnknownError("waits");
  changes_.AwaitDurable(changes_.position(), [&](absl::Status status) { durable = status; });
  EXPECT_EQ(durable, absl::OkStatus());
}

TEST_F(ChangeSequencerTest, AChangeThatCannotBeRecordedIsNotMadeAndMayBeRepeated) {
  Record();
  journal_.status = absl::ResourceExhaustedError("the disk is full");
  const absl::Status full = absl::ResourceExhaustedError("shard 3: log: the disk is full");
  EXPECT_EQ(Push(1, 1, {0}).status(), full);
  EXPECT_EQ(Pause(1, {0}), full);
  EXPECT_EQ(window_.count().accepted, 0);
  EXPECT_TRUE(applied_.empty());
  journal_.status = absl::OkStatus();
  EXPECT_FALSE(Push(1, 1, {0})->duplicate);
  EXPECT_EQ(applied_, (std::vector<Applied>{{0, 0}}));
}

TEST_F(ChangeSequencerTest, AnOldIncarnationChangesAndRecordsNothing) {
  Record();
  ASSERT_TRUE(Push(2, 1, {0}).ok());
  for (const absl::Status& status :
       {Push(1, 2, {0}).status(), Pause(1, {0}), changes_.CheckIncarnation({2, 1, &window_})}) {
    EXPECT_EQ(status.message(),
              "shard 3: worker 2: push of incarnation 1, want the newest: the worker restarted as incarnation 2");
    EXPECT_EQ(ReasonOf(status), v1::ERROR_REASON_STALE_INCARNATION);
    EXPECT_EQ(SubjectOf(status, "worker"), "2");
  }
  EXPECT_EQ(journal_.records.size(), 1);
  EXPECT_EQ(applied_.size(), 1);
}

TEST_F(ChangeSequencerTest, ReleasedWaitsEndOnceTheChangeHasLeftTheGate) {
  absl::Status ended = absl::UnknownError("waits");
  releases_ = {waits_.Add(
      clock_.Now() + absl::Hours(1), [](WaitList::Ticket, WaitList::Cause) { return true; }, [] { return ""; },
      [&](absl::Status status) {
        ChangeSequencer::AtRest rest(changes_);
        ended = status;
      })};
  ASSERT_TRUE(Push(1, 1, {0}).ok());
  EXPECT_EQ(ended, absl::OkStatus());
}

TEST_F(ChangeSequencerTest, AChangeAtRestIsRecordedLikeOthers) {
  Record();
  JournalEntry entry;
  entry.record.mutable_values();
  {
    ChangeSequencer::AtRest rest(changes_);
    EXPECT_EQ(changes_.Record(entry), absl::OkStatus());
  }
  EXPECT_EQ(Push(1, 1, {0})->position, 2);
  const auto ignore = [](absl::Status) {};
  changes_.AwaitDurable(1, ignore);
  changes_.AwaitSynced(changes_.position(), ignore);
  EXPECT_EQ(journal_.awaited, (std::vector<std::pair<std::string, uint64_t>>{{"durable", 1}, {"synced", 2}}));
}

}  // namespace
}  // namespace ballast
