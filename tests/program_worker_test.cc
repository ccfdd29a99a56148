// SPDX-License-Identifier: Apache-2.0
// Programs as workers of a job, by ProgramWorker: they bring their own model, and lease positions of their own data.
#include "client/program/program_worker.h"

#include <unistd.h>

#include <filesystem>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/flight/flight_dump.h"
#include "common/status/error_reason.h"
#include "common/storage/file.h"
#include "common/trace/call_timeline.h"
#include "gmock/gmock.h"
#include "tests/testing/cluster.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kTestTimeout = absl::Seconds(30);

// Joins the workers of a job at the same time.
class ProgramWorkerTest : public testing::Test {
 protected:
  ProgramWorker::Options Options(Cluster& cluster, uint32_t rank) {
    ProgramWorker::Options options;
    options.coordinator = cluster.server(0).address();
    options.job.set_name("program");
    options.rank = rank;
    options.gather_timeout = kTestTimeout;
    return options;
  }

  // Joins the ranks 0 to `count` - 1; `change` sets further options of each.
  std::vector<std::unique_ptr<ProgramWorker>> JoinAll(
      Cluster& cluster, uint32_t count,
      absl::FunctionRef<void(ProgramWorker::Options&)> change = [](ProgramWorker::Options&) {}) {
    std::vector<absl::StatusOr<std::unique_ptr<ProgramWorker>>> joined(count);
    std::vector<std::thread> threads;
    for (uint32_t rank = 0; rank < count; ++rank) {
      ProgramWorker::Options options = Options(cluster, rank);
      change(options);
      threads.emplace_back([&joined, rank, options] { joined[rank] = ProgramWorker::Join(options); });
    }
    for (std::thread& thread : threads) thread.join();
    std::vector<std::unique_ptr<ProgramWorker>> workers;
    for (auto& worker : joined) {
      EXPECT_TRUE(worker.ok()) << worker.status();
      workers.push_back(worker.ok() ? *std::move(worker) : nullptr);
    }
    return workers;
  }
};

// Pushes ones and pulls; returns the first value.
absl::StatusOr<float> Step(ProgramWorker& worker, uint32_t id, uint64_t step, uint32_t examples = 1) {
  const std::vector<float> ones(3, 1);
  std::vector<float> values(3);
  const absl::Status status =
      worker.client().PushPull(step, examples, {{id, ones, {}}}, {{id, absl::MakeSpan(values), {}}}).Get().status();
  if (!status.ok()) return status;
  return values[0];
}

TEST_F(ProgramWorkerTest, AssignsIdsInOrderAndKeepsThoseOfNamesThatTheJobHas) {
  Cluster cluster(2, 2);
  const auto workers = JoinAll(cluster, 2);
  const auto first = workers[0]->Declare({Spec(0, "a", 3), Spec(0, "b", 3)});
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(*first, std::vector<uint32_t>({1, 2}));
  const auto second = workers[1]->Declare({Spec(0, "b", 3), Spec(0, "c", 3)});
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(*second, std::vector<uint32_t>({2, 3}));
  EXPECT_EQ(workers[1]->Declare({Spec(0, "a", 4)}).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(workers[1]->workers(), 2);
  EXPECT_EQ(workers[1]->servers(), 2);
}

TEST_F(ProgramWorkerTest, NamesTheMembersThatAreMissing) {
  Cluster cluster(1, 3);
  ProgramWorker::Options options = Options(cluster, 0);
  options.gather_timeout = absl::Milliseconds(200);
  const absl::Status status = ProgramWorker::Join(options).status();
  EXPECT_EQ(ReasonOf(status), v1::ERROR_REASON_WAIT_TIMEOUT);
  EXPECT_EQ(status.message(),
            "job \"program\" has not gathered within 200ms: got 1 servers and 1 workers, want 1 and 3");
}

TEST_F(ProgramWorkerTest, RefusesOptionsThatDoNotFit) {
  Cluster cluster(1, 1);
  ProgramWorker::Options options = Options(cluster, 0);
  options.examples = 10;
  EXPECT_THAT(std::string(ProgramWorker::Join(options).status().message()), HasSubstr("want at least 1 of each"));
  options.job.mutable_training()->mutable_early_stopping()->set_epochs(1);
  EXPECT_THAT(std::string(ProgramWorker::Join(options).status().message()), HasSubstr("training.early_stopping"));
}

// Each position of each epoch is leased once, although one of the workers is lost with a lease in hand.
TEST_F(ProgramWorkerTest, LeasesEachPositionOfALostWorkerToAnother) {
  constexpr uint64_t kExamples = 1000;
  Cluster cluster(1, 2);
  auto workers = JoinAll(cluster, 2, [](ProgramWorker::Options& options) {
    options.job.mutable_policy()->mutable_async();
    options.job.mutable_training()->set_epochs(2);
    options.job.mutable_training()->set_batch_size(10);
    options.examples = kExamples;
  });
  for (auto& worker : workers) ASSERT_TRUE(worker->Declare({Spec(0, "w", 3)}).ok());
  const auto lost = workers[1]->NextLease(kTestTimeout);
  ASSERT_TRUE(lost.ok()) << lost.status();
  ASSERT_TRUE(lost->has_value());
  EXPECT_LT((*lost)->range.begin(), (*lost)->range.end());
  workers[1].reset();
  std::vector<int> seen(2 * kExamples);
  uint64_t steps = 0;
  while (true) {
    const auto lease = workers[0]->NextLease(kTestTimeout);
    ASSERT_TRUE(lease.ok()) << lease.status();
    if (!lease->has_value()) break;
    const v1::Lease& range = (*lease)->range;
    for (uint64_t p = range.begin(); p < range.end(); ++p) ++seen[range.epoch() * kExamples + p];
    ASSERT_TRUE(Step(*workers[0], 1, steps++).ok());
    ASSERT_TRUE(workers[0]->CompleteLease(range.id(), steps, steps).ok());
  }
  EXPECT_EQ(seen, std::vector<int>(2 * kExamples, 1));
  EXPECT_TRUE(workers[0]->Leave("").ok());
}

// In lock step, the others go on while a worker is away, and it reaches their step when it returns.
TEST_F(ProgramWorkerTest, WorkerThatReturnsCatchesUp) {
  Cluster cluster(2, 2);
  auto workers = JoinAll(cluster, 2);
  for (auto& worker : workers) ASSERT_TRUE(worker->Declare({Spec(0, "w", 3)}).ok());
  EXPECT_FALSE(workers[1]->returns());
  std::thread other([&] { EXPECT_EQ(Step(*workers[1], 1, 0).value_or(0), 99); });
  EXPECT_EQ(Step(*workers[0], 1, 0).value_or(0), 99);
  other.join();
  workers[1].reset();
  // The first worker's steps wait until the second one is declared lost.
  EXPECT_EQ(Step(*workers[0], 1, 1).value_or(0), 98);
  EXPECT_EQ(Step(*workers[0], 1, 2).value_or(0), 97);

  auto again = ProgramWorker::Join(Options(cluster, 1));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE((*again)->returns());
  ASSERT_TRUE((*again)->Declare({Spec(0, "w", 3)}).ok());
  EXPECT_EQ((*again)->CatchUp({}).status().code(), absl::StatusCode::kInvalidArgument);
  std::vector<float> values(3);
  std::thread trains([&] {
    // After CatchUp has pulled, because it would otherwise wait for a step that this test does not make.
    absl::SleepFor(absl::Seconds(2));
    EXPECT_TRUE(Step(*workers[0], 1, 3).ok());
  });
  const absl::StatusOr<uint64_t> step = (*again)->CatchUp({{1, absl::MakeSpan(values), {}}});
  trains.join();
  ASSERT_TRUE(step.ok()) << step.status();
  EXPECT_EQ(*step, 4);
  EXPECT_EQ(values[0], 96);
}

// While a worker has paused, the steps of the others do not wait for it.
TEST_F(ProgramWorkerTest, OthersDoNotWaitForAWorkerThatPauses) {
  Cluster cluster(2, 2);
  auto workers = JoinAll(cluster, 2);
  for (auto& worker : workers) ASSERT_TRUE(worker->Declare({Spec(0, "w", 3)}).ok());
  ASSERT_TRUE(workers[1]->Pause().ok());
  EXPECT_EQ(Step(*workers[0], 1, 0).value_or(0), 99);
  EXPECT_EQ(Step(*workers[0], 1, 1).value_or(0), 98);
}

TEST_F(ProgramWorkerTest, WorkerZeroWritesTheJobIntoTheRunDirectory) {
  Cluster cluster(1, 2);
  const std::string directory = testing::TempDir() + "/program_run";
  std::filesystem::create_directories(directory);
  const auto workers = JoinAll(cluster, 2, [&](ProgramWorker::Options& options) {
    options.job.mutable_policy()->mutable_async();
    options.run_dir = directory;
  });
  const absl::StatusOr<std::string> written = ReadFile(directory + "/job.textproto");
  ASSERT_TRUE(written.ok()) << written.status();
  EXPECT_THAT(*written, HasSubstr("async"));
}

TEST_F(ProgramWorkerTest, FailureOfOneEndsTheCallsOfTheOthersWithItsReason) {
  Cluster cluster(1, 2);
  auto workers = JoinAll(cluster, 2);
  for (auto& worker : workers) ASSERT_TRUE(worker->Declare({Spec(0, "w", 3)}).ok());
  const std::vector<float> ones(3, 1);
  std::vector<float> values(3);
  const auto waiting = workers[0]->client().PushPull(0, 1, {{1, ones, {}}}, {{1, absl::MakeSpan(values), {}}});
  ASSERT_TRUE(workers[1]->Leave("the disk is full").ok());
  const absl::Status status = workers[0]->Explain(waiting.Get().status());
  EXPECT_EQ(ReasonOf(status), v1::ERROR_REASON_JOB_FAILED) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("the disk is full"));
}

TEST_F(ProgramWorkerTest, ACallThatFailsLeavesAFlightDump) {
  const std::string folder = testing::TempDir() + "/program_flight";
  std::filesystem::create_directories(folder);
  Cluster cluster(1, 2);
  auto workers = JoinAll(cluster, 2, [&](ProgramWorker::Options& options) {
    if (options.rank == 0) options.flight_dir = folder;
  });
  for (auto& worker : workers) ASSERT_TRUE(worker->Declare({Spec(0, "w", 3)}).ok());
  const std::vector<float> ones(3, 1);
  std::vector<float> values(3);
  const auto waiting = workers[0]->client().PushPull(0, 1, {{1, ones, {}}}, {{1, absl::MakeSpan(values), {}}});
  ASSERT_TRUE(workers[1]->Leave("the disk is full").ok());
  EXPECT_FALSE(workers[0]->Explain(waiting.Get().status()).ok());
  workers.clear();
  const auto text = ReadFile(absl::StrCat(folder, "/flight-worker-0-", getpid(), ".jsonl"));
  ASSERT_TRUE(text.ok()) << text.status();
  const absl::StatusOr<FlightDump> dump = ParseFlightDump(*text);
  ASSERT_TRUE(dump.ok()) << dump.status();
  EXPECT_EQ(dump->process, "worker 0");
  EXPECT_THAT(dump->reason, HasSubstr("the disk is full"));
  EXPECT_GT(dump->recorded.events.size(), 0);
}

TEST_F(ProgramWorkerTest, MessagesNameTheTraceThatTheProgramIsPartOf) {
  CallTimeline calls;
  Cluster cluster(1, 1, [&](Server::Options& options) { options.calls = &calls; });
  const TraceContext trace = {.trace_high = 1, .trace_low = 2, .span = 3, .sampled = true};
  auto workers = JoinAll(cluster, 1, [&](ProgramWorker::Options& options) { options.trace = trace; });
  ASSERT_TRUE(workers[0]->Declare({Spec(0, "w", 3)}).ok());
  ASSERT_TRUE(Step(*workers[0], 1, 0).ok());
  // A server's span ends after its response is sent.
  for (int i = 0; i < 100 && calls.Copy().calls.empty(); ++i) absl::SleepFor(absl::Milliseconds(100));
  const CallTimeline::Recording recording = calls.Copy();
  ASSERT_EQ(recording.calls.size(), 1);
  EXPECT_EQ(recording.calls[0].method, "/ballast.v1.ParameterService/PushPull");
  EXPECT_EQ(recording.calls[0].context.TraceId(), trace.TraceId());
  EXPECT_NE(recording.calls[0].parent, trace.span) << "the span of the program's message";
}

TEST_F(ProgramWorkerTest, ReportsReachTheJobsProgress) {
  Cluster cluster(1, 1);
  auto workers = JoinAll(cluster, 1);
  ASSERT_TRUE(workers[0]->Declare({Spec(0, "w", 3)}).ok());
  v1::WorkerProgress progress;
  progress.set_step(7);
  progress.mutable_work()->set_examples(20);
  progress.mutable_work()->set_loss_sum(10);
  const absl::StatusOr<v1::JobProgress> reported = workers[0]->Report(progress, std::nullopt);
  ASSERT_TRUE(reported.ok()) << reported.status();
  EXPECT_EQ(reported->examples(), 20);
  EXPECT_EQ(reported->train_loss(), 0.5);
}

}  // namespace
}  // namespace ballast
