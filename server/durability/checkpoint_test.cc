// SPDX-License-Identifier: Apache-2.0
// Tests a shard's part of a checkpoint, from the capture to shards that resume from it.
#include <filesystem>
#include <fstream>
#include <numeric>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/concurrency/clock.h"
#include "common/storage/framed_message.h"
#include "common/storage/testing/lossy_file_system.h"
#include "common/storage/testing/slow_file_system.h"
#include "common/tensors/shard_map.h"
#include "gtest/gtest.h"
#include "server/durability/checkpoint_source.h"
#include "server/durability/checkpoint_writer.h"
#include "server/durability/shard_snapshot.h"
#include "server/shard/parameter_shard.h"

namespace ballast {
namespace {

constexpr int64_t kRows = 300;

v1::TensorSpec Spec(uint32_t id, const std::string& name, int64_t elements) {
  v1::TensorSpec spec;
  spec.set_id(id);
  spec.set_name(name);
  spec.add_shape(elements);
  spec.mutable_optimizer()->mutable_momentum()->set_learning_rate(0.1f);
  spec.mutable_optimizer()->mutable_momentum()->set_momentum(0.9f);
  return spec;
}

JobConfig Job(uint32_t workers = 2) {
  JobConfig job{"job", {}, workers, {}};
  job.policy.mutable_sync();
  job.durability.set_mode(v1::Durability::CHECKPOINT);
  return job;
}

OwnedTensor Whole(const v1::TensorSpec& spec) {
  OwnedTensor tensor{spec, {}};
  tensor.slices.emplace_back().set_elements(spec.shape(0));
  return tensor;
}

ParameterShard::Options ShardOptions(uint32_t rank, const std::string& resume_from = "") {
  ParameterShard::Options options;
  options.rank = rank;
  options.keeps_checkpoints = true;
  options.resume_from = resume_from;
  options.load_checkpoint = [](const std::string& path, const JobConfig& job,
                               absl::Span<const OwnedTensor> tensors) -> absl::StatusOr<Resumption> {
    const auto source = CheckpointSource::Open(path);
    return source.ok() ? source->Load(job, tensors) : source.status();
  };
  return options;
}

absl::Status Push(ParameterShard& shard, uint32_t worker, uint64_t incarnation, uint64_t sequence, uint64_t step,
                  const OwnedTensor& tensor) {
  std::vector<float> values(tensor.spec.shape(0));
  std::iota(values.begin(), values.end(), static_cast<float>(sequence));
  const absl::string_view piece(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  const GradientView view{{tensor.spec.id(), 0}, 0, v1::ENCODING_FP32, {&piece, 1}};
  return shard.Push("job", {worker, incarnation, sequence, step, 1}, {&view, 1}).status();
}

CheckpointWriter::Outcome Await(const CheckpointWriter& writer) {
  while (true) {
    if (auto outcome = writer.outcome(); outcome.has_value()) return *outcome;
    absl::SleepFor(absl::Milliseconds(1));
  }
}

// Two shards with one tensor each, after three synchronous steps, and their checkpoint.
class CheckpointTest : public testing::Test {
 protected:
  CheckpointTest() {
    std::filesystem::remove_all(folder_.path());
    ShardMap map({"a:1", "b:1"});
    EXPECT_TRUE(map.Place({weights_.spec, bias_.spec}).ok());
    *manifest_.mutable_map() = map.ToProto();
    manifest_.set_id(5);
    manifest_.add_incarnations(4);
    manifest_.add_incarnations(1);
    for (uint32_t rank : {0u, 1u}) {
      const OwnedTensor& tensor = rank == 0 ? weights_ : bias_;
      EXPECT_EQ(map.Find(tensor.spec.id())->slices[0].shard, rank);
      shards_.push_back(std::make_unique<ParameterShard>(ShardOptions(rank), Clock::Real()));
      EXPECT_TRUE(shards_[rank]->Declare(Job(), {tensor}).ok());
      for (uint64_t step = 0; step < 3; ++step) {
        for (uint32_t worker : {0u, 1u}) EXPECT_TRUE(Push(*shards_[rank], worker, 1, step + 1, step, tensor).ok());
      }
      CheckpointWriter writer(PosixFileSystem(), folder_.path(), rank);
      writer.Begin(5, 2, shards_[rank]->Capture([] {}));
      const auto outcome = Await(writer);
      EXPECT_TRUE(outcome.digest.ok()) << outcome.digest.status();
      internal::v1::CheckpointManifest::File* file = manifest_.add_files();
      file->set_name(CheckpointFolder::ShardFileName(5, rank, 2));
      file->set_bytes(outcome.digest->bytes);
      file->set_checksum(outcome.digest->checksum);
    }
    EXPECT_TRUE(folder_.Commit(manifest_).ok());
  }

  static std::vector<float> Values(ParameterShard& shard, uint32_t tensor) {
    const auto snapshot = shard.Pull({tensor, 0}, std::nullopt);
    EXPECT_TRUE(snapshot.ok()) << snapshot.status();
    if (!snapshot.ok()) return {};
    const absl::Span<const float> values = snapshot->values.values();
    return {values.begin(), values.end()};
  }

  // The error with which a shard refuses the checkpoint.
  std::string Refusal(const JobConfig& job, const OwnedTensor& tensor) {
    ParameterShard shard(ShardOptions(0, folder_.ManifestPath(5)), Clock::Real());
    const absl::Status status = shard.Declare(job, {tensor}).status();
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(shard.status().tensors, 0) << "nothing was created";
    return std::string(status.message());
  }

  // Commits a checkpoint of one shard.
  void Commit(uint64_t id, ParameterShard& shard) {
    internal::v1::CheckpointManifest manifest;
    manifest.set_id(id);
    ShardMap map({"a:1"});
    ASSERT_TRUE(map.Place({weights_.spec}).ok());
    *manifest.mutable_map() = map.ToProto();
    CheckpointWriter writer(PosixFileSystem(), folder_.path(), 0);
    writer.Begin(id, 1, shard.Capture([] {}));
    const auto outcome = Await(writer);
    ASSERT_TRUE(outcome.digest.ok()) << outcome.digest.status();
    internal::v1::CheckpointManifest::File* file = manifest.add_files();
    file->set_name(CheckpointFolder::ShardFileName(id, 0, 1));
    file->set_bytes(outcome.digest->bytes);
    file->set_checksum(outcome.digest->checksum);
    ASSERT_TRUE(folder_.Commit(manifest).ok());
  }

  CheckpointFolder folder_{PosixFileSystem(), testing::TempDir() + "/checkpoint-of-shards"};
  OwnedTensor weights_ = Whole(Spec(1, "w", kRows));
  OwnedTensor bias_ = Whole(Spec(2, "b", 7));
  internal::v1::CheckpointManifest manifest_;
  std::vector<std::unique_ptr<ParameterShard>> shards_;
};

TEST_F(CheckpointTest, OneShardGoesOnWhereTwoWere) {
  ParameterShard shard(ShardOptions(0, folder_.ManifestPath(5)), Clock::Real());
  ASSERT_TRUE(shard.Declare(Job(), {weights_, bias_}).ok());
  EXPECT_EQ(Values(shard, 1), Values(*shards_[0], 1));
  EXPECT_EQ(Values(shard, 2), Values(*shards_[1], 2));
}

TEST_F(CheckpointTest, MomentumAndStepsGoOn) {
  ParameterShard shard(ShardOptions(0, folder_.ManifestPath(5)), Clock::Real());
  ASSERT_TRUE(shard.Declare(Job(), {weights_, bias_}).ok());
  for (uint32_t worker : {0u, 1u}) {
    ASSERT_TRUE(Push(*shards_[0], worker, 1, 4, 3, weights_).ok());
    ASSERT_TRUE(Push(shard, worker, 9, 4, 3, weights_).ok());
  }
  EXPECT_EQ(Values(shard, 1), Values(*shards_[0], 1));
}

TEST_F(CheckpointTest, AWorkerOfTheRunBeforeIsKeptOut) {
  ParameterShard shard(ShardOptions(0, folder_.ManifestPath(5)), Clock::Real());
  ASSERT_TRUE(shard.Declare(Job(), {weights_, bias_}).ok());
  EXPECT_EQ(Push(shard, 0, 4, 100, 3, weights_).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Push(shard, 0, 5, 1, 3, weights_).ok());
}

TEST_F(CheckpointTest, OtherWorkersBeginAtTheSameStep) {
  ParameterShard shard(ShardOptions(0, folder_.ManifestPath(5)), Clock::Real());
  ASSERT_TRUE(shard.Declare(Job(3), {weights_, bias_}).ok());
  const std::vector<float> before = Values(shard, 1);
  for (uint32_t worker : {0u, 1u}) ASSERT_TRUE(Push(shard, worker, 9, 1, 3, weights_).ok());
  EXPECT_EQ(Values(shard, 1), before) << "the pull waits for the third worker";
  ASSERT_TRUE(Push(shard, 2, 9, 1, 3, weights_).ok());
  EXPECT_NE(Values(shard, 1), before);
}

TEST_F(CheckpointTest, AStepOfAResumedJobWaitsForAWorkerThatHadPaused) {
  ParameterShard before(ShardOptions(0), Clock::Real());
  ASSERT_TRUE(before.Declare(Job(), {weights_}).ok());
  ASSERT_TRUE(before.Pause("job", 1, 1).ok());
  for (uint64_t step = 0; step < 5; ++step) ASSERT_TRUE(Push(before, 0, 1, step + 1, step, weights_).ok());
  Commit(7, before);
  ParameterShard shard(ShardOptions(0, folder_.ManifestPath(7)), Clock::Real());
  ASSERT_TRUE(shard.Declare(Job(), {weights_}).ok());
  const std::vector<float> values = Values(shard, 1);
  ASSERT_TRUE(Push(shard, 0, 9, 1, 5, weights_).ok());
  EXPECT_EQ(Values(shard, 1), values);
  ASSERT_TRUE(Push(shard, 1, 9, 1, 5, weights_).ok());
  EXPECT_NE(Values(shard, 1), values);
}

TEST_F(CheckpointTest, TheBoundOfAResumedJobCountsAWorkerThatHadPaused) {
  JobConfig job = Job();
  job.policy.mutable_bounded()->set_staleness(1);
  ParameterShard before(ShardOptions(0), Clock::Real());
  ASSERT_TRUE(before.Declare(job, {weights_}).ok());
  ASSERT_TRUE(before.Pause("job", 1, 1).ok());
  for (uint64_t step = 0; step < 5; ++step) ASSERT_TRUE(Push(before, 0, 1, step + 1, step, weights_).ok());
  Commit(7, before);
  // All workers resume at the step of the furthest one, including the new third one.
  for (const uint32_t workers : {2u, 3u}) {
    job.workers = workers;
    ParameterShard shard(ShardOptions(0, folder_.ManifestPath(7)), Clock::Real());
    ASSERT_TRUE(shard.Declare(job, {weights_}).ok());
    for (uint64_t step : {5, 6}) ASSERT_TRUE(Push(shard, 0, 9, step, step, weights_).ok());
    absl::Status waited = absl::UnknownError("still waits");
    shard.AwaitPull("job", {7, 0}, {{1, 0}}, absl::Hours(1), false, [&](absl::Status status) { waited = status; });
    for (uint32_t worker = 1; worker < workers; ++worker) {
      EXPECT_EQ(waited.code(), absl::StatusCode::kUnknown) << worker << " of " << workers;
      ASSERT_TRUE(Push(shard, worker, 9, 1, 5, weights_).ok());
    }
    EXPECT_TRUE(waited.ok()) << waited;
  }
}

// In format 1 of logs, snapshots and manifests, gradients were part of their slice's message.
TEST_F(CheckpointTest, ACheckpointOfFormat1Loads) {
  JobConfig job = Job(3);
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
  const auto bytes = [](const ValueBuffer& values) {
    return std::string(reinterpret_cast<const char*>(values.values().data()), values.size() * sizeof(float));
  };
  internal::v1::PolicyState* policy = body.mutable_slice()->mutable_policy();
  policy->set_sum(bytes(slice.policy.sum));
  internal::v1::PolicyState::Held* held = policy->add_held();
  held->set_worker(2);
  held->set_examples(slice.policy.held[0].examples);
  held->set_values(bytes(slice.policy.held[0].values));
  end.mutable_end()->set_records(2);
  const std::string name = CheckpointFolder::ShardFileName(8, 0, 1);
  {
    auto writer = RecordWriter::Create(PosixFileSystem(), folder_.PathOf(name), 1);
    ASSERT_TRUE(writer.ok()) << writer.status();
    ASSERT_TRUE((*writer)->Append({FrameMessage(header)}, 0).ok());
    const std::string weights = bytes(slice.weights.arrays[0]), slot = bytes(slice.weights.arrays[1]);
    ASSERT_TRUE((*writer)->Append({FrameMessage(body), weights, slot}, 0).ok());
    ASSERT_TRUE((*writer)->Append({FrameMessage(end)}, 0).ok());
  }
  const auto digest = DigestFile(folder_.PathOf(name));
  ASSERT_TRUE(digest.ok()) << digest.status();
  internal::v1::CheckpointManifest manifest;
  manifest.set_format(1);
  manifest.set_id(8);
  ShardMap map({"a:1"});
  ASSERT_TRUE(map.Place({bias_.spec}).ok());
  *manifest.mutable_map() = map.ToProto();
  internal::v1::CheckpointManifest::File* file = manifest.add_files();
  file->set_name(name);
  file->set_bytes(digest->bytes);
  file->set_checksum(digest->checksum);
  {
    auto writer = RecordWriter::Create(PosixFileSystem(), folder_.ManifestPath(8), 1);
    ASSERT_TRUE(writer.ok()) << writer.status();
    ASSERT_TRUE((*writer)->Append({FrameMessage(manifest)}, 0).ok());
  }

  ParameterShard shard(ShardOptions(0, folder_.ManifestPath(8)), Clock::Real());
  const auto declared = shard.Declare(job, {bias_});
  ASSERT_TRUE(declared.ok()) << declared.status();
  for (ParameterShard* one : {&before, &shard}) ASSERT_TRUE(Push(*one, 1, 1, 1, 0, bias_).ok());
  EXPECT_EQ(Values(shard, 2), Values(before, 2));
}

TEST_F(CheckpointTest, WhatDoesNotFitIsNamed) {
  const std::string longer = Refusal(Job(), Whole(Spec(1, "w", kRows + 1)));
  EXPECT_TRUE(absl::StrContains(longer, "a checkpoint of another model: tensor 1 \"w\"")) << longer;
  const std::string unknown = Refusal(Job(), Whole(Spec(9, "new", 4)));
  EXPECT_TRUE(absl::StrContains(unknown, "tensor \"new\" is not in the checkpoint")) << unknown;
  JobConfig async = Job();
  async.policy.mutable_async();
  EXPECT_TRUE(absl::StrContains(Refusal(async, weights_), "the checkpoint's job was in mode sync, got async"));
}

// Saves a shard whose tensor has a polynomial schedule, after a push at half of the job, then resumes it under
// another schedule. Returns the learning rate of the first push there, at a quarter of that job.
absl::StatusOr<float> ResumeAs(uint64_t saved_total, bool saved_follows, uint64_t total, bool follows) {
  CheckpointFolder folder(PosixFileSystem(), testing::TempDir() + "/checkpoint-of-schedules");
  std::filesystem::remove_all(folder.path());
  const auto tensor = [](uint64_t of_total, bool from_job) {
    v1::TensorSpec spec = Spec(1, "w", 4);
    spec.mutable_optimizer()->mutable_sgd()->set_learning_rate(8);
    spec.mutable_optimizer()->mutable_schedule()->mutable_polynomial()->set_total(of_total);
    spec.mutable_optimizer()->mutable_schedule()->set_total_from_job(from_job);
    return Whole(spec);
  };
  const auto push = [](ParameterShard& shard, uint64_t incarnation, uint64_t step, double position) {
    const float values[4] = {1, 1, 1, 1};
    const absl::string_view piece(reinterpret_cast<const char*>(values), sizeof(values));
    const GradientView view{{1, 0}, step, v1::ENCODING_FP32, {&piece, 1}};
    return shard.Push("job", {0, incarnation, 1, step, 1, position}, {&view, 1});
  };
  ParameterShard before(ShardOptions(0), Clock::Real());
  const OwnedTensor saved = tensor(saved_total, saved_follows);
  EXPECT_TRUE(before.Declare(Job(1), {saved}).ok());
  EXPECT_TRUE(push(before, 1, 0, 0.5).ok());
  CheckpointWriter writer(PosixFileSystem(), folder.path(), 0);
  writer.Begin(5, 1, before.Capture([] {}));
  const auto outcome = Await(writer);
  internal::v1::CheckpointManifest manifest;
  ShardMap map({"a:1"});
  EXPECT_TRUE(map.Place({saved.spec}).ok());
  *manifest.mutable_map() = map.ToProto();
  manifest.set_id(5);
  manifest.add_incarnations(1);
  internal::v1::CheckpointManifest::File* file = manifest.add_files();
  file->set_name(CheckpointFolder::ShardFileName(5, 0, 1));
  file->set_bytes(outcome.digest->bytes);
  file->set_checksum(outcome.digest->checksum);
  EXPECT_TRUE(folder.Commit(manifest).ok());
  ParameterShard after(ShardOptions(0, folder.ManifestPath(5)), Clock::Real());
  const auto declared = after.Declare(Job(1), {tensor(total, follows)});
  if (!declared.ok()) return declared.status();
  const absl::StatusOr<PushOutcome> pushed = push(after, 9, 1, 0.25);
  if (!pushed.ok()) return pushed.status();
  return pushed->learning_rate;
}

TEST(CheckpointOfSchedulesTest, AJobThatIsLongerNowGoesOnWhereItsDataIs) {
  EXPECT_EQ(*ResumeAs(100, true, 200, true), 6);
}

TEST(CheckpointOfSchedulesTest, AReleaseThatDidNotKnowOfPositionsSavedTheTotalAlone) {
  EXPECT_EQ(*ResumeAs(100, false, 100, true), 6);
}

TEST(CheckpointOfSchedulesTest, AnotherExplicitTotalIsAnotherModel) {
  EXPECT_EQ(ResumeAs(100, false, 200, false).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ResumeAs(100, true, 100, false).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(CheckpointTest, DamageAndLossAreNamed) {
  const std::string file = folder_.PathOf(CheckpointFolder::ShardFileName(5, 0, 2));
  std::fstream(file, std::ios::in | std::ios::out | std::ios::binary).seekp(200).put('\x55');
  EXPECT_TRUE(absl::StrContains(Refusal(Job(), weights_), absl::StrCat(file, ": is damaged")));
  std::filesystem::remove(file);
  EXPECT_TRUE(absl::StrContains(Refusal(Job(), weights_), absl::StrCat(file, ": is missing")));
}

TEST_F(CheckpointTest, AFullDiskIsSaidAndLeavesNothing) {
  LossyFileSystem files;
  files.SetFree(1000);
  CheckpointWriter writer(&files, folder_.path(), 0);
  writer.Begin(6, 2, shards_[0]->Capture([] {}));
  EXPECT_EQ(Await(writer).digest.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(std::filesystem::exists(folder_.PathOf(CheckpointFolder::ShardFileName(6, 0, 2))));
  files.SetFree(1 << 20);
  writer.Begin(7, 2, shards_[0]->Capture([] {}));
  EXPECT_TRUE(Await(writer).digest.ok());
}

TEST_F(CheckpointTest, APartThatTheDiskHasDamagedIsNoOutcome) {
  LossyFileSystem files;
  const std::string name = CheckpointFolder::ShardFileName(6, 0, 2);
  files.CorruptFilesWith(name);
  CheckpointWriter writer(&files, folder_.path(), 0);
  writer.Begin(6, 2, shards_[0]->Capture([] {}));
  EXPECT_EQ(Await(writer).digest.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_FALSE(std::filesystem::exists(folder_.PathOf(name)));
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
  EXPECT_FALSE(std::filesystem::exists(folder_.PathOf(CheckpointFolder::ShardFileName(7, 0, 2))))
      << "part 7 was dropped before it was written";
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
