// SPDX-License-Identifier: Apache-2.0
// Tests a shard's part of a checkpoint, from the capture to shards that resume from it.
#include <filesystem>
#include <fstream>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/storage/framed_message.h"
#include "common/storage/testing/slow_file_system.h"
#include "common/tensors/shard_map.h"
#include "gtest/gtest.h"
#include "server/durability/checkpoint_source.h"
#include "server/durability/shard_checkpoint.h"
#include "server/durability/shard_snapshot.h"
#include "server/durability/shard_store_fixture.h"

namespace ballast {
namespace {

using internal::v1::CheckpointManifest;

constexpr int64_t kRows = 300;

JobConfig SyncJob(uint32_t workers = 2) {
  JobConfig job = Job(v1::Durability::CHECKPOINT, workers);
  job.policy.mutable_sync();
  return job;
}

ParameterShard::Options ShardOptions(uint32_t rank, const std::string& resume_from = "") {
  return {.rank = rank,
          .keeps_checkpoints = true,
          .resume_from = resume_from,
          .load_checkpoint = [](const std::string& path, const JobConfig& job, absl::Span<const OwnedTensor> tensors,
                                absl::Span<const std::unique_ptr<Table>> tables) -> absl::StatusOr<Resumption> {
            const auto source = CheckpointSource::Open(path);
            return source.ok() ? source->Load(job, tensors, tables) : source.status();
          }};
}

absl::StatusOr<PushOutcome> PushValues(ParameterShard& shard, const PushTicket& ticket, const OwnedTensor& tensor,
                                       const std::vector<float>& values) {
  const absl::string_view piece = BytesOf(values);
  const GradientView view{{tensor.spec.id(), 0}, 0, v1::ENCODING_FP32, {&piece, 1}};
  return shard.Push("job", ticket, {&view, 1});
}

absl::Status Push(ParameterShard& shard, uint32_t worker, uint64_t incarnation, uint64_t sequence, uint64_t step,
                  const OwnedTensor& tensor) {
  std::vector<float> values(tensor.spec.shape(0));
  std::iota(values.begin(), values.end(), static_cast<float>(sequence));
  return PushValues(shard, {worker, incarnation, sequence, step, 1}, tensor, values).status();
}

CheckpointWriter::Outcome Await(const CheckpointWriter& writer) {
  while (true) {
    if (auto outcome = writer.outcome(); outcome.has_value()) return *outcome;
    absl::SleepFor(absl::Milliseconds(1));
  }
}

CheckpointManifest ManifestOf(uint64_t id, std::vector<std::string> servers,
                              const std::vector<v1::TensorSpec>& tensors) {
  ShardMap map(std::move(servers));
  EXPECT_TRUE(map.Place(tensors).ok());
  CheckpointManifest manifest;
  manifest.set_id(id);
  *manifest.mutable_map() = map.ToProto();
  return manifest;
}

void AddFile(const std::string& name, const absl::StatusOr<FileDigest>& digest, CheckpointManifest& manifest) {
  ASSERT_THAT(digest, IsOk());
  CheckpointManifest::File* file = manifest.add_files();
  file->set_name(name);
  file->set_bytes(digest->bytes);
  file->set_checksum(digest->checksum);
}

// Writes the shard's part of a checkpoint and adds it to the manifest.
void AddPart(const CheckpointFolder& folder, ParameterShard& shard, uint32_t rank, CheckpointManifest& manifest) {
  CheckpointWriter writer(PosixFileSystem(), folder.path(), rank);
  const uint32_t shards = manifest.map().shards_size();
  writer.Begin(manifest.id(), shards, shard.Capture([] {}));
  AddFile(CheckpointFolder::ShardFileName(manifest.id(), rank, shards), Await(writer).digest, manifest);
}

// Two shards with one tensor each, after three synchronous steps, and their checkpoint.
class CheckpointTest : public testing::Test {
 protected:
  CheckpointTest() {
    std::filesystem::remove_all(folder_.path());
    CheckpointManifest manifest = ManifestOf(5, {"a:1", "b:1"}, {weights_.spec, bias_.spec});
    manifest.add_incarnations(4);
    manifest.add_incarnations(1);
    const ShardMap map = *ShardMap::FromProto(manifest.map());
    for (uint32_t rank : {0u, 1u}) {
      const OwnedTensor& tensor = rank == 0 ? weights_ : bias_;
      EXPECT_EQ(map.Find(tensor.spec.id())->slices[0].shard, rank);
      shards_.push_back(std::make_unique<ParameterShard>(ShardOptions(rank), Clock::Real()));
      EXPECT_TRUE(shards_[rank]->Declare(SyncJob(), {tensor}).ok());
      for (uint64_t step = 0; step < 3; ++step) {
        for (uint32_t worker : {0u, 1u}) EXPECT_TRUE(Push(*shards_[rank], worker, 1, step + 1, step, tensor).ok());
      }
      AddPart(folder_, *shards_[rank], rank, manifest);
    }
    EXPECT_TRUE(folder_.Commit(manifest).ok());
  }

  // A shard that resumes from a checkpoint.
  std::unique_ptr<ParameterShard> Resume(uint64_t checkpoint, const JobConfig& job, std::vector<OwnedTensor> tensors) {
    auto shard = std::make_unique<ParameterShard>(ShardOptions(0, folder_.ManifestPath(checkpoint)), Clock::Real());
    EXPECT_THAT(shard->Declare(job, std::move(tensors)), IsOk());
    return shard;
  }

  static std::vector<float> Values(ParameterShard& shard, uint32_t tensor) {
    const auto snapshot = shard.Pull({tensor, 0}, std::nullopt);
    EXPECT_TRUE(snapshot.ok()) << snapshot.status();
    if (!snapshot.ok()) return {};
    const absl::Span<const float> values = snapshot->values.values();
    return {values.begin(), values.end()};
  }

  // The error with which a shard refuses the checkpoint.
  absl::Status Refusal(const JobConfig& job, const OwnedTensor& tensor) {
    ParameterShard shard(ShardOptions(0, folder_.ManifestPath(5)), Clock::Real());
    const absl::Status status = shard.Declare(job, {tensor}).status();
    EXPECT_EQ(shard.status().tensors, 0) << "nothing was created";
    return status;
  }

  // Commits a checkpoint, with id 7, of a shard that worker 0 has taken to step 5 while worker 1 paused.
  void CommitWithPausedWorker(const JobConfig& job) {
    ParameterShard shard(ShardOptions(0), Clock::Real());
    ASSERT_TRUE(shard.Declare(job, {weights_}).ok());
    ASSERT_TRUE(shard.Pause("job", 1, 1).ok());
    for (uint64_t step = 0; step < 5; ++step) ASSERT_TRUE(Push(shard, 0, 1, step + 1, step, weights_).ok());
    CheckpointManifest manifest = ManifestOf(7, {"a:1"}, {weights_.spec});
    AddPart(folder_, shard, 0, manifest);
    ASSERT_THAT(folder_.Commit(manifest), IsOk());
  }

  std::string PartOf(uint64_t id) const { return folder_.PathOf(CheckpointFolder::ShardFileName(id, 0, 2)); }

  CheckpointFolder folder_{PosixFileSystem(), testing::TempDir() + "/checkpoint-of-shards"};
  OwnedTensor weights_ = Tensor(1, "w", kRows), bias_ = Tensor(2, "b", 7);
  std::vector<std::unique_ptr<ParameterShard>> shards_;
  LossyFileSystem files_;
};

TEST_F(CheckpointTest, OneShardGoesOnWhereTwoWere) {
  const auto shard = Resume(5, SyncJob(), {weights_, bias_});
  EXPECT_EQ(Values(*shard, 1), Values(*shards_[0], 1));
  EXPECT_EQ(Values(*shard, 2), Values(*shards_[1], 2));
}

TEST_F(CheckpointTest, MomentumAndStepsGoOn) {
  const auto shard = Resume(5, SyncJob(), {weights_, bias_});
  for (uint32_t worker : {0u, 1u}) {
    ASSERT_TRUE(Push(*shards_[0], worker, 1, 4, 3, weights_).ok());
    ASSERT_TRUE(Push(*shard, worker, 9, 4, 3, weights_).ok());
  }
  EXPECT_EQ(Values(*shard, 1), Values(*shards_[0], 1));
}

TEST_F(CheckpointTest, AWorkerOfTheRunBeforeIsKeptOut) {
  const auto shard = Resume(5, SyncJob(), {weights_, bias_});
  EXPECT_EQ(Push(*shard, 0, 4, 100, 3, weights_).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Push(*shard, 0, 5, 1, 3, weights_).ok());
}

TEST_F(CheckpointTest, OtherWorkersBeginAtTheSameStep) {
  const auto shard = Resume(5, SyncJob(3), {weights_, bias_});
  const std::vector<float> before = Values(*shard, 1);
  for (uint32_t worker : {0u, 1u}) ASSERT_TRUE(Push(*shard, worker, 9, 1, 3, weights_).ok());
  EXPECT_EQ(Values(*shard, 1), before) << "the pull waits for the third worker";
  ASSERT_TRUE(Push(*shard, 2, 9, 1, 3, weights_).ok());
  EXPECT_NE(Values(*shard, 1), before);
}

TEST_F(CheckpointTest, AStepOfAResumedJobWaitsForAWorkerThatHadPaused) {
  CommitWithPausedWorker(SyncJob());
  const auto shard = Resume(7, SyncJob(), {weights_});
  const std::vector<float> values = Values(*shard, 1);
  ASSERT_TRUE(Push(*shard, 0, 9, 1, 5, weights_).ok());
  EXPECT_EQ(Values(*shard, 1), values);
  ASSERT_TRUE(Push(*shard, 1, 9, 1, 5, weights_).ok());
  EXPECT_NE(Values(*shard, 1), values);
}

TEST_F(CheckpointTest, TheBoundOfAResumedJobCountsAWorkerThatHadPaused) {
  JobConfig job = SyncJob();
  job.policy.mutable_bounded()->set_steps_ahead(1);
  CommitWithPausedWorker(job);
  // All workers resume at the step of the furthest one, including the new third one.
  for (const uint32_t workers : {2u, 3u}) {
    job.workers = workers;
    const auto shard = Resume(7, job, {weights_});
    for (uint64_t step : {5, 6}) ASSERT_TRUE(Push(*shard, 0, 9, step, step, weights_).ok());
    absl::Status waited = absl::UnknownError("still waits");
    shard->AwaitPull("job", {7, 0}, {{1, 0}}, absl::Hours(1), false, [&](absl::Status status) { waited = status; });
    for (uint32_t worker = 1; worker < workers; ++worker) {
      EXPECT_EQ(waited.code(), absl::StatusCode::kUnknown) << worker << " of " << workers;
      ASSERT_TRUE(Push(*shard, worker, 9, 1, 5, weights_).ok());
    }
    EXPECT_TRUE(waited.ok()) << waited;
  }
}

// Writes a file of format 1.
void WriteFile(const std::string& path, std::initializer_list<std::initializer_list<absl::string_view>> records) {
  auto writer = RecordWriter::Create(PosixFileSystem(), path, 1);
  ASSERT_THAT(writer, IsOk());
  for (const auto record : records) ASSERT_THAT((*writer)->Append(record, 0), IsOk());
}

// In format 1 of logs, snapshots and manifests, gradients were part of their slice's message.
TEST_F(CheckpointTest, ACheckpointOfFormat1Loads) {
  JobConfig job = SyncJob(3);
  job.policy.mutable_sync()->set_deterministic(true);
  ParameterShard before(ShardOptions(0), Clock::Real());
  ASSERT_TRUE(before.Declare(job, {bias_}).ok());
  ASSERT_TRUE(Push(before, 0, 1, 1, 0, bias_).ok());
  ASSERT_TRUE(Push(before, 2, 1, 1, 0, bias_).ok());
  const ShardState capture = before.Capture([] {});
  const ShardState::SliceEntry& slice = capture.slices[0];
  ASSERT_EQ(slice.policy.held.size(), 1);

  internal::v1::SnapshotRecord header, body, end;
  *header.mutable_header() = MakeHeader({.shard = 0, .shards = 1, .position = 8}, capture);
  header.mutable_header()->set_format(1);
  *body.mutable_slice() = MakeState(slice);
  body.mutable_slice()->clear_held_gradients();
  body.mutable_slice()->set_elements(7);
  body.mutable_slice()->set_arrays(2);
  const auto bytes = [](const ValueBuffer& values) { return std::string(BytesOf(values.values())); };
  internal::v1::PolicyState* policy = body.mutable_slice()->mutable_policy();
  policy->set_sum(bytes(slice.policy.sum));
  internal::v1::PolicyState::Held* held = policy->add_held();
  held->set_worker(2);
  held->set_examples(slice.policy.held[0].examples);
  held->set_values(bytes(slice.policy.held[0].values));
  end.mutable_end()->set_records(2);
  const std::string name = CheckpointFolder::ShardFileName(8, 0, 1);
  const std::string weights = bytes(slice.weights.arrays[0]), slot = bytes(slice.weights.arrays[1]);
  WriteFile(folder_.PathOf(name), {{FrameMessage(header)}, {FrameMessage(body), weights, slot}, {FrameMessage(end)}});
  CheckpointManifest manifest = ManifestOf(8, {"a:1"}, {bias_.spec});
  manifest.set_format(1);
  AddFile(name, DigestFile(folder_.PathOf(name)), manifest);
  WriteFile(folder_.ManifestPath(8), {{FrameMessage(manifest)}});

  const auto shard = Resume(8, job, {bias_});
  for (ParameterShard* one : {&before, shard.get()}) ASSERT_TRUE(Push(*one, 1, 1, 1, 0, bias_).ok());
  EXPECT_EQ(Values(*shard, 2), Values(before, 2));
}

TEST_F(CheckpointTest, WhatDoesNotFitIsNamed) {
  constexpr auto kCode = absl::StatusCode::kFailedPrecondition;
  EXPECT_THAT(Refusal(SyncJob(), Tensor(1, "w", kRows + 1)),
              Fails(kCode, absl::StrCat("a checkpoint of another model: tensor 1 \"w\": shape[0]: got ", kRows + 1,
                                        ", want ", kRows)));
  EXPECT_THAT(Refusal(SyncJob(), Tensor(9, "new", 4)), Fails(kCode, "tensor \"new\" is not in the checkpoint"));
  JobConfig async = SyncJob();
  async.policy.mutable_async();
  EXPECT_THAT(Refusal(async, weights_), Fails(kCode, "the checkpoint's job was in mode sync, got async"));
}

// Saves a shard whose tensor has a polynomial schedule, after a push at half of the job, then resumes it under
// another schedule. Returns the learning rate of the first push there, at a quarter of that job.
absl::StatusOr<float> ResumeAs(uint64_t saved_total, bool saved_follows, uint64_t total, bool follows) {
  CheckpointFolder folder(PosixFileSystem(), testing::TempDir() + "/checkpoint-of-schedules");
  std::filesystem::remove_all(folder.path());
  const auto tensor = [](uint64_t of_total, bool from_job) {
    OwnedTensor scheduled = Tensor(1, "w", 4);
    v1::Optimizer& optimizer = *scheduled.spec.mutable_optimizer();
    optimizer.mutable_sgd()->set_learning_rate(8);
    optimizer.mutable_schedule()->mutable_polynomial()->set_total(of_total);
    optimizer.mutable_schedule()->set_total_from_job(from_job);
    return scheduled;
  };
  ParameterShard before(ShardOptions(0), Clock::Real());
  const OwnedTensor saved = tensor(saved_total, saved_follows);
  EXPECT_TRUE(before.Declare(SyncJob(1), {saved}).ok());
  EXPECT_TRUE(PushValues(before, {0, 1, 1, 0, 1, 0.5}, saved, {1, 1, 1, 1}).ok());
  CheckpointManifest manifest = ManifestOf(5, {"a:1"}, {saved.spec});
  manifest.add_incarnations(1);
  AddPart(folder, before, 0, manifest);
  EXPECT_TRUE(folder.Commit(manifest).ok());
  ParameterShard after(ShardOptions(0, folder.ManifestPath(5)), Clock::Real());
  const auto declared = after.Declare(SyncJob(1), {tensor(total, follows)});
  if (!declared.ok()) return declared.status();
  const absl::StatusOr<PushOutcome> pushed = PushValues(after, {0, 9, 1, 1, 1, 0.25}, saved, {1, 1, 1, 1});
  if (!pushed.ok()) return pushed.status();
  return pushed->learning_rate;
}

TEST(CheckpointOfSchedulesTest, AJobThatIsLongerNowGoesOnWhereItsDataIs) {
  EXPECT_EQ(*ResumeAs(100, true, 200, true), 6);
}

TEST(CheckpointOfSchedulesTest, AReleaseThatDidNotKnowOfPositionsSavedTheTotalAlone) {
  EXPECT_EQ(*ResumeAs(100, false, 100, true), 6);
}

TEST_F(CheckpointTest, AConstantThatWasLeftOutIsItsDefault) {
  OwnedTensor saved = Tensor(1, "w", 4);
  v1::Optimizer::Adam& adam = *saved.spec.mutable_optimizer()->mutable_adam();
  adam.set_learning_rate(1);
  ParameterShard before(ShardOptions(0), Clock::Real());
  ASSERT_TRUE(before.Declare(SyncJob(1), {saved}).ok());
  CheckpointManifest manifest = ManifestOf(9, {"a:1"}, {saved.spec});
  manifest.add_incarnations(1);
  AddPart(folder_, before, 0, manifest);
  ASSERT_TRUE(folder_.Commit(manifest).ok());
  const auto resume = [&](float beta1) {
    adam.set_beta1(beta1);
    return ParameterShard(ShardOptions(0, folder_.ManifestPath(9)), Clock::Real()).Declare(SyncJob(1), {saved});
  };
  EXPECT_TRUE(resume(0.9f).ok()) << resume(0.9f).status();
  EXPECT_THAT(resume(0.8f).status(),
              Fails(absl::StatusCode::kFailedPrecondition, "tensor 1 \"w\": optimizer.adam.beta1: got 0.8, want 0.9"));
}

TEST(CheckpointOfSchedulesTest, AnotherExplicitTotalIsAnotherModel) {
  constexpr auto kCode = absl::StatusCode::kFailedPrecondition;
  EXPECT_THAT(ResumeAs(100, false, 200, false).status(),
              Fails(kCode, "tensor 1 \"w\": optimizer.schedule.polynomial.total: got 200, want 100"));
  EXPECT_THAT(ResumeAs(100, true, 100, false).status(),
              Fails(kCode, "tensor 1 \"w\": optimizer.schedule.polynomial.total: got 100, want 0"));
}

TEST_F(CheckpointTest, DamageAndLossAreNamed) {
  const std::string file = PartOf(5);
  std::fstream(file, std::ios::in | std::ios::out | std::ios::binary).seekp(200).put('\x55');
  EXPECT_THAT(Refusal(SyncJob(), weights_), Fails(absl::StatusCode::kDataLoss, absl::StrCat(file, ": is damaged")));
  std::filesystem::remove(file);
  EXPECT_THAT(Refusal(SyncJob(), weights_), Fails(absl::StatusCode::kDataLoss, absl::StrCat(file, ": is missing")));
}

TEST_F(CheckpointTest, AFullDiskIsSaidAndLeavesNothing) {
  files_.SetFree(1000);
  CheckpointWriter writer(&files_, folder_.path(), 0);
  writer.Begin(6, 2, shards_[0]->Capture([] {}));
  EXPECT_EQ(Await(writer).digest.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(std::filesystem::exists(PartOf(6)));
  files_.SetFree(1 << 20);
  writer.Begin(7, 2, shards_[0]->Capture([] {}));
  EXPECT_TRUE(Await(writer).digest.ok());
}

TEST_F(CheckpointTest, APartThatTheDiskHasDamagedIsNoOutcome) {
  files_.CorruptFilesWith(CheckpointFolder::ShardFileName(6, 0, 2));
  CheckpointWriter writer(&files_, folder_.path(), 0);
  writer.Begin(6, 2, shards_[0]->Capture([] {}));
  EXPECT_EQ(Await(writer).digest.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_FALSE(std::filesystem::exists(PartOf(6)));
}

TEST_F(CheckpointTest, WhoBeginsAPartNeverWaitsForADiskThatStandsStill) {
  SlowFileSystem files;
  CheckpointWriter writer(&files, folder_.path(), 0);
  files.Block();
  writer.Begin(6, 2, shards_[0]->Capture([] {}));
  files.AwaitBlocked(1);
  writer.Begin(7, 2, shards_[0]->Capture([] {}));
  writer.Begin(8, 2, shards_[0]->Capture([] {}));
  EXPECT_FALSE(writer.outcome().has_value());
  files.Release();
  EXPECT_EQ(Await(writer).id, 8u);
  EXPECT_FALSE(std::filesystem::exists(PartOf(7))) << "part 7 was dropped before it was written";
}

TEST_F(CheckpointTest, WhatIsCapturedStaysWhileTheShardGoesOn) {
  const ShardState capture = shards_[0]->Capture([] {});
  const std::vector<float> before = Values(*shards_[0], 1);
  for (uint32_t worker : {0u, 1u}) ASSERT_TRUE(Push(*shards_[0], worker, 1, 4, 3, weights_).ok());
  ASSERT_NE(Values(*shards_[0], 1), before);
  const absl::Span<const float> captured = capture.slices[0].weights.arrays[0].values();
  EXPECT_EQ(std::vector<float>(captured.begin(), captured.end()), before);
}

}  // namespace
}  // namespace ballast
