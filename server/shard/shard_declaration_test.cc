// SPDX-License-Identifier: Apache-2.0
// Tests that other calls proceed while a shard creates its tensors, however long that takes.
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "server/shard/parameter_shard.h"
#include "server/shard/shard_fixture.h"

namespace ballast {
namespace {

using testing::Test;

// A journal that stores nothing.
class CountingJournal : public ShardJournal {
 public:
  absl::StatusOr<uint64_t> Append(const internal::v1::ShardRecord& record, absl::Span<const absl::string_view>,
                                  absl::FunctionRef<bool()> admit, absl::FunctionRef<void()> in_order) override {
    if (!status.ok()) return status;
    if (record.has_declaration()) on_declaration();
    if (!admit()) return 0;
    in_order();
    return ++records;
  }
  void AwaitDurable(uint64_t, std::function<void(absl::Status)> done) override { done(absl::OkStatus()); }
  void AwaitSynced(uint64_t, std::function<void(absl::Status)> done) override { done(absl::OkStatus()); }
  std::optional<LogStatus> log() const override { return std::nullopt; }

  uint64_t records = 0;
  absl::Status status;
  // Called while a declaration is being written.
  std::function<void()> on_declaration = [] {};
};

class ShardDeclarationTest : public Test {
 protected:
  // Options whose checkpoints are loaded by `load_`, which a test can block.
  ParameterShard::Options Options() {
    ParameterShard::Options options;
    options.max_state_bytes = 1 << 20;
    options.keeps_checkpoints = true;
    options.open_journal = [this](const JobConfig&) -> absl::StatusOr<ShardJournal*> { return &journal_; };
    options.load_checkpoint = [this](const std::string&, const JobConfig&, absl::Span<const OwnedTensor> tensors,
                                     absl::Span<const std::unique_ptr<Table>>) {
      ++loads_;
      return load_(tensors);
    };
    return options;
  }

  static JobConfig Job(v1::Durability::Mode mode = v1::Durability::NONE) {
    JobConfig job{"job", {}, 2, {}};
    job.policy.mutable_async();
    job.durability.set_mode(mode);
    return job;
  }

  // Checkpoint state of the tensors, with `value` in each element.
  static Resumption Saved(absl::Span<const OwnedTensor> tensors, float value, uint64_t elements = 3) {
    Resumption resumption;
    for (const OwnedTensor& tensor : tensors) {
      ValueBuffer values(elements);
      for (float& element : values.mutable_values()) element = value;
      resumption.slices.push_back({{tensor.spec.id(), 0}, {.version = 5, .applied = 5, .arrays = {values}}, {}});
    }
    return resumption;
  }

  absl::Status DeclareFrom(const std::string& checkpoint, const OwnedTensor& tensor) {
    return shard_.DeclareFrom(checkpoint, Job(), {tensor}).status();
  }

  std::vector<float> Values(uint32_t tensor) {
    const absl::StatusOr<PulledValues> snapshot = shard_.Pull({tensor, 0}, std::nullopt);
    if (!snapshot.ok()) return {};
    return {snapshot->values.values().begin(), snapshot->values.values().end()};
  }

  absl::StatusOr<PushOutcome> Push(uint32_t tensor, uint64_t sequence) {
    const std::vector<float> ones(3, 1.0f);
    const absl::string_view bytes = Bytes(ones);
    const GradientView view{{tensor, 0}, 0, v1::ENCODING_FP32, {&bytes, 1}};
    return shard_.Push("job", {0, 1, sequence, sequence - 1, 1}, {view});
  }

  CountingJournal journal_;
  std::atomic<int> loads_{0};
  std::function<absl::StatusOr<Resumption>(absl::Span<const OwnedTensor>)> load_;
  ManualClock clock_;
  ParameterShard shard_{Options(), &clock_};
};

TEST_F(ShardDeclarationTest, AllOtherCallsGoOnWhileTensorsAreMade) {
  ASSERT_TRUE(DeclareFrom("", Tensor(1, "w", 3)).ok());
  absl::Notification reading, read;
  load_ = [&](absl::Span<const OwnedTensor> tensors) {
    reading.Notify();
    read.WaitForNotification();
    return Saved(tensors, 7);
  };
  std::thread declaring([&] { EXPECT_EQ(DeclareFrom("checkpoint", Tensor(2, "v", 3)), absl::OkStatus()); });
  reading.WaitForNotification();

  EXPECT_EQ(shard_.status().tensors, 1u);
  EXPECT_TRUE(Push(1, 1).ok());
  EXPECT_EQ(Values(1), (std::vector<float>{-1, -1, -1}));
  EXPECT_TRUE(shard_.Pause("job", 1, 1).ok());
  EXPECT_EQ(shard_.Capture([] {}).tensors.size(), 1u);
  absl::Status pulled = absl::UnknownError("waits");
  shard_.AwaitPull("job", {.step = 1}, {{1, 0}}, absl::Seconds(1), /*by_reader=*/false,
                   [&](absl::Status status) { pulled = status; });
  EXPECT_EQ(pulled, absl::OkStatus());
  absl::Status durable = absl::UnknownError("waits");
  shard_.AwaitDurable([&](absl::Status status) { durable = status; });
  EXPECT_EQ(durable, absl::OkStatus());

  read.Notify();
  declaring.join();
  EXPECT_EQ(Values(2), (std::vector<float>{7, 7, 7}));
}

// Returns once that thread of this process is blocked.
void AwaitBlocked(pid_t thread) {
  const std::string path = absl::StrCat("/proc/self/task/", thread, "/stat");
  for (std::string stat; !absl::StrContains(stat, ") S ");) {
    std::this_thread::yield();
    std::getline(std::ifstream(path), stat);
  }
}

// The pause is recorded after the declaration, so a replay pauses those tensors too.
TEST_F(ShardDeclarationTest, APauseBehindADeclarationCoversItsTensors) {
  JobConfig job = Job(v1::Durability::WAL);
  job.policy.mutable_sync();
  ASSERT_TRUE(shard_.Declare(job, {Tensor(1, "w", 3)}).ok());
  absl::Notification started;
  pid_t pausing_thread = 0;
  std::thread pausing;
  journal_.on_declaration = [&] {
    pausing = std::thread([&] {
      pausing_thread = gettid();
      started.Notify();
      EXPECT_EQ(shard_.Pause("job", 1, 1), absl::OkStatus());
    });
    started.WaitForNotification();
    AwaitBlocked(pausing_thread);
  };
  ASSERT_TRUE(shard_.Declare(job, {Tensor(1, "w", 3), Tensor(2, "v", 3)}).ok());
  pausing.join();
  // The update needs worker 0 only.
  EXPECT_EQ(Push(2, 1)->applied, 1u);
  EXPECT_EQ(Values(2), (std::vector<float>{-1, -1, -1}));
}

TEST_F(ShardDeclarationTest, TwoWhoDeclareTheSameAtOnceCauseTheWorkOnce) {
  absl::Notification reading, read;
  load_ = [&](absl::Span<const OwnedTensor> tensors) {
    reading.Notify();
    read.WaitForNotification();
    return Saved(tensors, 7);
  };
  const auto declare = [&] { EXPECT_EQ(DeclareFrom("checkpoint", Tensor(1, "w", 3)), absl::OkStatus()); };
  std::thread first(declare);
  reading.WaitForNotification();
  std::thread second(declare), third(declare);
  read.Notify();
  first.join();
  second.join();
  third.join();
  EXPECT_EQ(loads_, 1);
  EXPECT_EQ(Values(1), (std::vector<float>{7, 7, 7}));
}

TEST_F(ShardDeclarationTest, ADeclarationThatFailsChangesNothing) {
  load_ = [](absl::Span<const OwnedTensor> tensors) { return Saved(tensors, 7, /*elements=*/4); };
  EXPECT_EQ(DeclareFrom("checkpoint", Tensor(1, "w", 3)).message(),
            "shard 0: cannot resume: \"w\" slice 0: got 4 elements, want 3");
  load_ = [](absl::Span<const OwnedTensor>) { return absl::DataLossError("is damaged"); };
  EXPECT_EQ(DeclareFrom("checkpoint", Tensor(1, "w", 3)), absl::DataLossError("is damaged"));
  journal_.status = absl::ResourceExhaustedError("the disk is full");
  EXPECT_EQ(shard_.Declare(Job(v1::Durability::WAL), {Tensor(1, "w", 3)}).status(), journal_.status);

  EXPECT_EQ(shard_.job_name(), "");
  EXPECT_EQ(shard_.status().slices, 0u);
  EXPECT_EQ(shard_.status().state_bytes, 0u);
  EXPECT_EQ(DeclareFrom("", Tensor(1, "w", 200000)), absl::OkStatus());
}

TEST_F(ShardDeclarationTest, WhatWouldNotFitIsRefusedBeforeAnyWork) {
  load_ = [](absl::Span<const OwnedTensor> tensors) { return Saved(tensors, 7); };
  EXPECT_EQ(DeclareFrom("checkpoint", Tensor(1, "w", 1 << 20)).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(loads_, 0);
}

TEST_F(ShardDeclarationTest, AShardClosedMeanwhileTakesNoTensors) {
  load_ = [this](absl::Span<const OwnedTensor> tensors) {
    shard_.Close(absl::AbortedError("the job has failed"));
    return Saved(tensors, 7);
  };
  EXPECT_EQ(DeclareFrom("checkpoint", Tensor(1, "w", 3)), absl::AbortedError("the job has failed"));
  EXPECT_EQ(shard_.status().slices, 0u);
}

TEST_F(ShardDeclarationTest, InitialValuesDoNotDependOnHowManyThreadsMakeThem) {
  OwnedTensor whole = Tensor(1, "w", 100000);
  whole.spec.mutable_initializer()->mutable_he_normal();
  OwnedTensor cut = whole;
  for (uint32_t index = 0; index < 10; ++index) {
    v1::SliceRange& range = cut.slices.emplace_back();
    range.set_index(index);
    range.set_offset(index * 10000);
    range.set_elements(10000);
  }
  ASSERT_TRUE(shard_.Declare(Job(), {whole}).ok());
  ParameterShard other(Options(), &clock_);
  ASSERT_TRUE(other.Declare(Job(), {cut}).ok());
  const std::vector<float> expected = Values(1);
  for (uint32_t index = 0; index < 10; ++index) {
    const absl::StatusOr<PulledValues> part = other.Pull({1, index}, std::nullopt);
    ASSERT_TRUE(part.ok()) << part.status();
    EXPECT_EQ(part->values.values(), absl::MakeConstSpan(expected).subspan(index * 10000, 10000));
  }
}

}  // namespace
}  // namespace ballast
