// SPDX-License-Identifier: Apache-2.0
#include "server/shard/declared_job.h"

#include <cmath>
#include <string>
#include <vector>

#include "common/status/error_reason.h"
#include "gtest/gtest.h"
#include "server/shard/shard_fixture.h"

namespace ballast {
namespace {

using enum absl::StatusCode;

// The job of shard 3, which has "w" with three elements (tensor 1) and "large" (tensor 2) once it is declared.
class DeclaredJobTest : public testing::Test {
 protected:
  static JobConfig Job(bool sync, uint32_t workers) {
    return {"job", sync ? SyncPolicy(0) : AsyncPolicy(), workers, {}};
  }

  absl::Status Declare(const JobConfig& job, std::vector<OwnedTensor> tensors,
                       absl::Span<const internal::v1::WindowState> windows = {}) {
    absl::StatusOr<TensorCatalog::Addition> addition = job_.CheckDeclaration(job, tensors);
    if (!addition.ok()) return addition.status();
    if (absl::Status status = job_.MakeSlices(job, {}, *addition); !status.ok()) return status;
    job_.Add(job, *std::move(addition), windows);
    return absl::OkStatus();
  }
  void Declare() { ASSERT_TRUE(Declare(Job(false, 1), {Tensor(1, "w", 3), Tensor(2, "large", 200000)}).ok()); }

  static internal::v1::WindowState WindowOfIncarnation(uint64_t incarnation) {
    internal::v1::WindowState window;
    window.set_incarnation(incarnation);
    return window;
  }

  const std::vector<float> three_ = {1, 2, 3}, two_ = {1, 2}, nan_ = {1, NAN, 3};
  const absl::string_view of_three_ = Bytes(three_), of_two_ = Bytes(two_), of_nan_ = Bytes(nan_);
  const std::string zeros_ = std::string(8, 0);
  const absl::string_view top_one_ = zeros_;
  DeclaredJob job_{3, 1 << 20};
};

TEST_F(DeclaredJobTest, RefusesADeclarationThatDiffers) {
  ASSERT_TRUE(Declare(Job(false, 1), {Tensor(1, "w", 3)}).ok());
  EXPECT_NE(Declare(Job(false, 1), {Tensor(1, "w", 4)}).message().find("shape[0]: 3 -> 4"), std::string::npos);
  EXPECT_EQ(Declare(Job(false, 1), {Tensor(2, "w", 3)}).code(), kFailedPrecondition);
  JobConfig other = Job(false, 1), durable = Job(false, 1), invalid = Job(false, 0);
  other.name = "other";
  durable.durability.set_mode(v1::Durability::WAL);
  const struct {
    JobConfig job;
    absl::StatusCode code;
    v1::ErrorReason reason;
    std::string message;
  } cases[] = {
      {Job(false, 2), kFailedPrecondition, v1::ERROR_REASON_JOB_DIFFERS,
       "job \"job\" was declared with 1 workers, got 2"},
      {Job(true, 1), kFailedPrecondition, v1::ERROR_REASON_JOB_DIFFERS,
       "job \"job\" was declared with policy async { }, got sync { }"},
      {durable, kFailedPrecondition, v1::ERROR_REASON_JOB_DIFFERS,
       "job \"job\" was declared with durability {  }, got { mode: WAL }"},
      {other, kFailedPrecondition, v1::ERROR_REASON_WRONG_JOB, "this shard holds job \"job\", got \"other\""},
      {invalid, kInvalidArgument, v1::ERROR_REASON_INVALID_REQUEST, "workers: got 0, want 1 to 4096"},
  };
  for (const auto& [job, code, reason, message] : cases) {
    const absl::Status status = Declare(job, {});
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_EQ(ReasonOf(status), reason) << status;
    EXPECT_EQ(status.message(), message);
  }
}

TEST_F(DeclaredJobTest, RefusesStateBeyondItsMemoryBeforeAllocating) {
  EXPECT_EQ(Declare(Job(false, 1), {Tensor(1, "huge", int64_t{1} << 40)}).code(), kFailedPrecondition);
  // Each tensor would fit alone.
  EXPECT_EQ(Declare(Job(false, 1), {Tensor(1, "a", 200000), Tensor(2, "b", 200000)}).message(),
            "tensor \"b\": this shard would hold 1600000 bytes, at most 1048576 are allowed");
  OwnedTensor adam = Tensor(1, "adam", 100000);
  adam.spec.mutable_optimizer()->mutable_adam()->set_learning_rate(0.1f);
  EXPECT_EQ(Declare(Job(false, 1), {adam}).message(),
            "tensor \"adam\": this shard would hold 1202048 bytes, at most 1048576 are allowed");
  EXPECT_EQ(job_.summary().slices, 0);
}

TEST_F(DeclaredJobTest, RefusesSlicesThatLieOutsideOrOverlap) {
  OwnedTensor tensor = Tensor(1, "w", 10);
  v1::SliceRange range;
  range.set_offset(8);
  range.set_elements(3);
  tensor.slices = {range};
  EXPECT_EQ(Declare(Job(false, 1), {tensor}).code(), kInvalidArgument);
  range.set_offset(~uint64_t{0});
  tensor.slices = {range};
  EXPECT_EQ(Declare(Job(false, 1), {tensor}).code(), kInvalidArgument);
  range.set_offset(0);
  v1::SliceRange second = range;
  second.set_index(1);
  second.set_offset(2);
  tensor.slices = {range, second};
  EXPECT_EQ(Declare(Job(false, 1), {tensor}).code(), kInvalidArgument);
}

TEST_F(DeclaredJobTest, RefusesAJobWithoutTheStorageThatItsDurabilityNeeds) {
  const struct {
    v1::Durability::Mode mode;
    bool keeps_checkpoints, keeps_journal;
    std::string message;
  } cases[] = {
      {v1::Durability::NONE, false, false, ""},
      {v1::Durability::CHECKPOINT, true, false, ""},
      {v1::Durability::CHECKPOINT, false, true,
       "job \"job\" wants durability CHECKPOINT, but shard 3 has no checkpoint directory (--checkpoint_dir)"},
      {v1::Durability::WAL_SYNC, false, true, ""},
      {v1::Durability::WAL, true, false,
       "job \"job\" wants durability WAL, but shard 3 has no state directory (--state_dir)"},
  };
  for (const auto& [mode, keeps_checkpoints, keeps_journal, message] : cases) {
    JobConfig job = Job(false, 1);
    job.durability.set_mode(mode);
    const absl::Status status = job_.CheckDurability(job, keeps_checkpoints, keeps_journal);
    EXPECT_EQ(status.message(), message);
    EXPECT_EQ(ReasonOf(status), status.ok() ? v1::ERROR_REASON_UNSPECIFIED : v1::ERROR_REASON_NO_STORAGE);
  }
}

TEST_F(DeclaredJobTest, AWorkerThatHasPushedKeepsItsWindow) {
  ASSERT_TRUE(Declare(Job(false, 2), {Tensor(1, "w", 3)}).ok());
  ASSERT_TRUE(job_.FindSource("job", 0, 1)->window->Begin(1, 1).ok());
  const std::vector<internal::v1::WindowState> saved(3, WindowOfIncarnation(7));
  ASSERT_TRUE(Declare(Job(false, 2), {Tensor(2, "v", 3)}, saved).ok());
  EXPECT_EQ(job_.FindSource("job", 0, 1)->window->count().incarnation, 1);
  EXPECT_EQ(job_.FindSource("job", 1, 1)->window->count().incarnation, 7);
}

TEST_F(DeclaredJobTest, AdoptsOneJobWithItsWindows) {
  ASSERT_TRUE(
      job_.Adopt(Job(false, 2), TensorCatalog(3, 0), DeclaredJob::MakeWindows(2, {WindowOfIncarnation(7)})).ok());
  EXPECT_EQ(job_.name(), "job");
  EXPECT_EQ(job_.FindSource("job", 0, 1)->window->count().incarnation, 7);
  EXPECT_EQ(job_.FindSource("job", 1, 1)->window->count().incarnation, 0);
  EXPECT_EQ(job_.Adopt(Job(false, 1), TensorCatalog(3, 0), {}).message(), "the shard already holds a job");
}

TEST_F(DeclaredJobTest, RefusesStrangers) {
  const auto push = [&](absl::string_view job, SliceKey key, uint64_t incarnation = 1, uint64_t sequence = 1) {
    return job_.CheckPush(job, {0, incarnation, sequence, 0, 1}, {{key, 0, v1::ENCODING_FP32, {&of_three_, 1}}})
        .status();
  };
  EXPECT_EQ(push("job", {1, 0}).message(), "no tensor has been declared on this shard");
  Declare();
  EXPECT_EQ(job_.FindSource("job", 1, 1).status().message(), "worker: got rank 1, want below the job's 1 workers");
  EXPECT_EQ(push("job", {1, 0}, 1, 0).message(), "push: got incarnation 1 and sequence 0, want both from 1");
  EXPECT_EQ(push("job", {1, 0}, 0, 1).code(), kInvalidArgument);
  EXPECT_EQ(push("other", {1, 0}).message(), "this shard holds job \"job\", got \"other\"");
  EXPECT_EQ(push("job", {1, 5}).message(), "shard 3: does not own slice 5 of \"w\"");
  EXPECT_EQ(push("job", {9, 0}).message(), "shard 3: tensor 9 is not declared");
  EXPECT_EQ(push("job", {1, 0}), absl::OkStatus());
}

TEST_F(DeclaredJobTest, ChecksTheGradientsOfAPush) {
  Declare();
  const GradientView empty{{1, 0}, 0, v1::ENCODING_FP32, {}}, good{{1, 0}, 0, v1::ENCODING_FP32, {&of_three_, 1}};
  const struct {
    uint32_t examples;
    std::vector<GradientView> gradients;
    std::string message;
  } cases[] = {
      {1, {}, ""},
      {1, {good, good}, ""},
      {0, {empty}, ""},
      {1, {empty}, "shard 3: gradient of \"w\" slice 0 has 0 elements, want 3"},
      {1, {{{1, 0}, 0, v1::ENCODING_FP32, {&of_two_, 1}}}, "shard 3: gradient of \"w\" slice 0 has 2 elements, want 3"},
      {1,
       {{{1, 0}, 0, v1::ENCODING_FP32, {&of_nan_, 1}}},
       "shard 3: gradient of \"w\" slice 0 by worker 0 at step 4 has NaN or infinity, want finite numbers"},
      {0, {{{1, 0}, 0, v1::ENCODING_FP32, {&of_nan_, 1}}}, ""},
  };
  for (const auto& [examples, gradients, message] : cases) {
    const auto checked = job_.CheckPush("job", {0, 1, 1, 4, examples}, gradients);
    EXPECT_EQ(checked.status().message(), message);
    if (checked.ok()) {
      EXPECT_EQ(checked->gradients.size(), gradients.size());
    }
  }
}

TEST_F(DeclaredJobTest, RefusesMoreElementsThanAMessageMayCarry) {
  Declare();
  // A slice has 66,667 elements.
  const std::vector<GradientView> many(16, {{2, 0}, 0, v1::ENCODING_TOP_K, {&top_one_, 1}});
  EXPECT_EQ(job_.CheckPush("job", {0, 1, 1, 0, 1}, many).status().message(),
            "shard 3: a message's slices have more than 1048576 elements; send fewer in one message");
}

TEST_F(DeclaredJobTest, OnlyAShardThatMayHaveLostUpdatesLetsASliceCatchUpWithAPush) {
  ASSERT_TRUE(Declare(Job(true, 1), {Tensor(1, "w", 3)}).ok());
  const PushTicket late{0, 1, 1, 4, 1}, now{0, 1, 1, 0, 1};
  const auto checked = job_.CheckPush("job", late, {{{1, 0}, 0, v1::ENCODING_FP32, {&of_three_, 1}}});
  ASSERT_TRUE(checked.ok()) << checked.status();
  const absl::Status refused = job_.CheckSteps(late, *checked, /*may_have_lost=*/false).status();
  EXPECT_EQ(refused.code(), kFailedPrecondition);
  EXPECT_EQ(SubjectOf(refused, "tensor"), "w");
  EXPECT_EQ(SubjectOf(refused, "worker"), "0");
  const auto behind = job_.CheckSteps(late, *checked, /*may_have_lost=*/true);
  ASSERT_TRUE(behind.ok()) << behind.status();
  ASSERT_EQ(behind->size(), 1);
  EXPECT_EQ(behind->front().version, 4);
  EXPECT_TRUE(job_.CheckSteps(now, *checked, /*may_have_lost=*/true)->empty());
}

TEST_F(DeclaredJobTest, AClosedJobRefusesChangesAndStillFindsSlices) {
  Declare();
  const absl::Status reason = absl::UnavailableError("drains");
  EXPECT_TRUE(job_.Close(reason));
  EXPECT_FALSE(job_.Close(absl::AbortedError("again")));
  EXPECT_EQ(Declare(Job(false, 1), {Tensor(4, "v", 3)}), reason);
  EXPECT_EQ(job_.CheckPush("job", {0, 1, 1, 0, 1}, {}).status(), reason);
  EXPECT_EQ(job_.CheckValues("job", {}).status(), reason);
  EXPECT_TRUE(job_.summary().draining);
  EXPECT_TRUE(job_.CheckPull("job", {{1, 0}}).ok());
}

}  // namespace
}  // namespace ballast
