// SPDX-License-Identifier: Apache-2.0
// Jobs that resume from a checkpoint, with the real programs.
#include "cli/checkpoint/checkpoint_command.h"
#include "common/storage/checkpoint_folder.h"
#include "gmock/gmock.h"
#include "tests/testing/job_test.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;

constexpr int kEpochs = 200;
constexpr int kExamples = kEpochs * 157;

// Returns the newest manifest; empty if there is none.
internal::v1::CheckpointManifest Newest(const std::vector<CheckpointFolder::Entry>& checkpoints) {
  if (checkpoints.empty()) return {};
  return ReadManifest(checkpoints.back().manifest_path).value_or(internal::v1::CheckpointManifest());
}

class CheckpointTest : public JobTest {
 protected:
  // The job takes a few seconds and a checkpoint each second.
  void WriteLongJob(std::vector<std::pair<std::string, std::string>> changes = {}, int epochs = kEpochs, int kept = 2) {
    changes.emplace_back("epochs: 3", absl::StrCat("epochs: ", epochs));
    changes.emplace_back(
        "policy {",
        absl::StrCat("durability { mode: CHECKPOINT checkpoint_seconds: 1 keep_checkpoints: ", kept, " }\npolicy {"));
    WriteJob(changes);
  }

  Summary Train(std::vector<std::string> flags, const std::string& run) {
    flags.push_back("--json");
    ChildProcess launch = Launch(flags, run);
    return Finish(launch);
  }

  // Returns the output of a launch that must fail.
  std::string Refused(std::vector<std::string> flags) {
    ChildProcess launch = Launch(flags, "refused");
    EXPECT_NE(launch.Wait().ToString(), "ended with status 0") << launch.output();
    return launch.output();
  }

  std::vector<std::vector<float>> Values(const std::string& run) const {
    std::vector<std::vector<float>> values;
    for (const LoadedTensor& tensor : Model(run)) values.push_back(tensor.values);
    return values;
  }

  // The learning rate of the last line of metrics.jsonl that has one.
  double LastLearningRate(const std::string& run) const {
    double rate = -1;
    std::istringstream lines(Read(run + "/metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
      if (json.contains("learning_rate")) rate = json["learning_rate"];
    }
    return rate;
  }

  std::vector<CheckpointFolder::Entry> Checkpoints(const std::string& run) const {
    const auto entries = CheckpointFolder(PosixFileSystem(), Path(run + "/checkpoints")).List();
    EXPECT_TRUE(entries.ok()) << entries.status();
    return entries.value_or(std::vector<CheckpointFolder::Entry>());
  }
};

TEST_F(CheckpointTest, AResumedRunEndsWithTheSameBitsWithAnyNumberOfServers) {
  // The oldest is kept: on a busy machine the last ones may be taken when no examples are left.
  WriteLongJob({}, kEpochs, /*kept=*/100);
  const Summary whole = Train({"--servers", "2", "--workers", "2"}, "whole");
  ASSERT_FALSE(Checkpoints("whole").empty());
  const std::string oldest = Checkpoints("whole").front().manifest_path;
  const auto manifest = ReadManifest(oldest);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_LT(manifest->progress().examples(), whole.examples) << "the checkpoint must leave examples to train on";
  for (const char* servers : {"1", "3"}) {
    const std::string run = absl::StrCat("resumed-", servers);
    const Summary resumed = Train({"--servers", servers, "--workers", "2", "--resume", oldest}, run);
    EXPECT_EQ(Values(run), Values("whole")) << servers << " servers";
    EXPECT_EQ(resumed.steps, whole.steps);
    EXPECT_EQ(resumed.examples, whole.examples) << "each example once, before or after the checkpoint";
  }
  WriteJob({{"epochs: 3", absl::StrCat("epochs: ", kEpochs)}});
  Train({"--servers", "2", "--workers", "2"}, "never-stopped");
  EXPECT_EQ(Values("whole"), Values("never-stopped")) << "checkpoints must not change the weights";
}

TEST_F(CheckpointTest, AnyNumberOfWorkersGoesOnInEachMode) {
  const std::vector<std::string> modes[] = {
      {"async"}, {"bounded", "--steps_ahead", "2"}, {"local_sgd", "--local-steps", "2"}};
  for (const std::vector<std::string>& mode_flags : modes) {
    const std::string& mode = mode_flags[0];
    const auto with = [&](std::vector<std::string> flags) {
      flags.push_back("--mode");
      flags.insert(flags.end(), mode_flags.begin(), mode_flags.end());
      return flags;
    };
    WriteLongJob();
    const std::string run = absl::StrCat("first-", mode);
    Train(with({"--servers", "2", "--workers", "2"}), run);
    ASSERT_FALSE(Checkpoints(run).empty());
    const Summary resumed =
        Train(with({"--servers", "1", "--workers", "3", "--resume", Checkpoints(run)[0].manifest_path}),
              absl::StrCat("second-", mode));
    EXPECT_EQ(resumed.examples, kExamples) << mode;
    EXPECT_GE(resumed.test_accuracy.value_or(0), 0.9) << mode;
  }
}

// Adam and a cosine over the whole job, as in the examples.
const std::pair<std::string, std::string> kAsInTheExamples = {"sgd { learning_rate: 0.2 }",
                                                              "adam { learning_rate: 0.01 } schedule { cosine {} }"};

TEST_F(CheckpointTest, AScheduleOverTheJobFollowsOtherWorkersEpochsAndBatches) {
  WriteLongJob({kAsInTheExamples});
  Train({"--servers", "2", "--workers", "2"}, "first");
  ASSERT_FALSE(Checkpoints("first").empty());
  // The flags of the resumed run, and its epochs.
  const std::tuple<const char*, std::vector<std::string>, int> cases[] = {
      {"workers", {"--workers", "3"}, kEpochs},
      {"epochs", {"--workers", "2", "--set", "training.epochs=250"}, 250},
      {"batch", {"--workers", "2", "--set", "training.batch_size=16"}, kEpochs},
      {"all", {"--workers", "1", "--set", "training.epochs=250", "--set", "training.batch_size=5"}, 250},
  };
  for (auto [run, flags, epochs] : cases) {
    flags.insert(flags.end(), {"--resume", Path("first")});
    const Summary resumed = Train(flags, run);
    EXPECT_EQ(resumed.examples, epochs * 157) << run;
    EXPECT_GE(resumed.test_accuracy.value_or(0), 0.9) << run;
    EXPECT_LT(LastLearningRate(run), 0.0001) << run << ": the cosine ends with the job";
  }
}

TEST_F(CheckpointTest, AJobWhoseServerDiesBeforeItsFirstCheckpointStartsFromTheBeginning) {
  WriteJob(
      {{"epochs: 3", absl::StrCat("epochs: ", kEpochs)}, {"policy {", "durability { mode: CHECKPOINT }\npolicy {"}});
  ChildProcess launch = Launch({"--servers", "2", "--workers", "2", "--json"}, "run");
  ASSERT_TRUE(launch.AwaitOutput(" done  train loss ")) << launch.output();
  Child(launch, "ballast_server", "1").Signal(SIGKILL);
  EXPECT_EQ(launch.Wait().ToString(), "ended with status 0") << launch.output();
  EXPECT_THAT(launch.output(), HasSubstr("there is no checkpoint yet; the job starts from the beginning"));
  EXPECT_EQ(Printed().examples, kExamples);
}

TEST_F(CheckpointTest, AJobWhoseServerDiesGoesBackToItsNewestCheckpoint) {
  // Long enough for a fast machine to have most of it left after the first checkpoint.
  constexpr int kLong = 4 * kEpochs;
  WriteLongJob({}, kLong);
  ChildProcess launch = Launch({"--servers", "2", "--workers", "2", "--json"}, "run");
  ASSERT_TRUE(launch.AwaitOutput(" done  train loss ")) << launch.output();
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (Checkpoints("run").empty() && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(20));
  Child(launch, "ballast_server", "1").Signal(SIGKILL);
  EXPECT_EQ(launch.Wait().ToString(), "ended with status 0") << launch.output();
  EXPECT_THAT(launch.output(), HasSubstr("the job restarts from its newest checkpoint"));
  EXPECT_THAT(launch.output(), HasSubstr("the job resumes from "));
  const Summary summary = Printed();
  EXPECT_EQ(summary.restarts, 4) << "two servers, two workers";
  EXPECT_EQ(summary.examples, kLong * 157);
  EXPECT_GE(summary.test_accuracy.value_or(0), 0.9);
}

TEST_F(CheckpointTest, WhatDoesNotFitIsRefused) {
  WriteLongJob();
  Train({"--workers", "2"}, "whole");
  WriteLongJob({{"units: 16", "units: 17"}});
  EXPECT_THAT(Refused({"--workers", "2", "--resume", Path("whole")}),
              testing::AllOf(HasSubstr("a checkpoint of another model: tensor"), HasSubstr("weight")));
  WriteLongJob();
  EXPECT_THAT(Refused({"--workers", "2", "--set", "optimizer.sgd.learning_rate=0.5", "--resume", Path("whole")}),
              HasSubstr("tensor 0 \"dense1/weight\": optimizer.sgd.learning_rate: got 0.5, want 0.2"));
  EXPECT_THAT(Refused({"--workers", "2", "--mode", "async", "--resume", Path("whole")}),
              HasSubstr("the checkpoint's job was in mode sync, got async"));
  EXPECT_THAT(Refused({"--resume", Path("nowhere")}), HasSubstr("nowhere"));
  WriteLongJob({{"blobs", "drops"}});
  EXPECT_THAT(Refused({"--workers", "2", "--resume", Path("whole")}),
              HasSubstr("it belongs to job \"blobs\", got job \"drops\""));
}

TEST_F(CheckpointTest, DamageIsFoundBeforeAnythingIsLoaded) {
  WriteLongJob();
  Train({"--workers", "2"}, "whole");
  std::ostringstream out, err;
  EXPECT_EQ(CheckpointCommand({"verify", Path("whole"), "--json"}, out, err), 0) << err.str();
  EXPECT_TRUE(nlohmann::json::parse(out.str())["ok"]);
  std::ostringstream exported;
  EXPECT_EQ(CheckpointCommand({"export", Path("whole"), Path("weights.safetensors")}, exported, err), 0) << err.str();
  const auto weights = ReadSafetensors(Path("weights.safetensors"));
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_EQ(weights->tensors.size(), 4);

  const std::string manifest = Checkpoints("whole").back().manifest_path;
  const std::string file = CheckpointFilePath(manifest, ReadManifest(manifest)->files(0));
  std::fstream(file, std::ios::in | std::ios::out | std::ios::binary).seekp(300).put('\x5a');
  std::ostringstream broken;
  EXPECT_EQ(CheckpointCommand({"verify", Path("whole")}, broken, err), 1);
  EXPECT_THAT(broken.str(), HasSubstr(absl::StrCat(file, ": is damaged")));
  EXPECT_THAT(Refused({"--workers", "2", "--resume", Path("whole")}), HasSubstr("is damaged"));
}

TEST_F(CheckpointTest, AnInterruptedRunGoesOnWhereItStopped) {
  // No checkpoint is due before the end, so each is the one that the interrupt takes.
  const std::pair<std::string, std::string> durability = {"policy {", "durability { mode: CHECKPOINT }\npolicy {"};
  WriteJob({{"epochs: 3", absl::StrCat("epochs: ", kEpochs)}});
  const Summary whole = Train({"--servers", "2", "--workers", "2"}, "whole");
  WriteJob({{"epochs: 3", absl::StrCat("epochs: ", kEpochs)}, durability});
  for (const char* mode : {"sync", "async"}) {
    const std::string run = absl::StrCat("interrupted-", mode);
    ChildProcess launch = Launch({"--servers", "2", "--workers", "2", "--mode", mode}, run);
    ASSERT_TRUE(launch.AwaitOutput(" done  train loss ")) << launch.output();
    kill(launch.pid(), mode == std::string("sync") ? SIGINT : SIGTERM);
    EXPECT_EQ(launch.Wait().ToString(), "ended with status 130") << launch.output();
    const internal::v1::CheckpointManifest saved = Newest(Checkpoints(run));
    EXPECT_THAT(launch.output(), HasSubstr("checkpoint 1 saved at step ")) << launch.output();
    EXPECT_GT(saved.progress().examples(), 0);
    EXPECT_LT(saved.progress().examples(), kExamples);
    const auto summary = ReadSummary(Path(run + "/summary.json"));
    ASSERT_TRUE(summary.ok()) << summary.status();
    EXPECT_TRUE(summary->interrupted);
    EXPECT_LE(summary->examples, static_cast<int64_t>(saved.progress().examples())) << "nothing is trained after it";
    const Summary resumed =
        Train({"--servers", "2", "--workers", "2", "--mode", mode, "--resume", "auto"}, absl::StrCat("resumed-", mode));
    EXPECT_EQ(resumed.examples, kExamples) << mode;
    std::filesystem::remove_all(Path(run));
  }
  EXPECT_EQ(Values("resumed-sync"), Values("whole")) << "as if it had never stopped";
}

TEST_F(CheckpointTest, AFinishedRunGoesOnWithMoreEpochs) {
  for (const char* durability : {"checkpoint", "wal", "standby"}) {
    const auto run = [&](const std::string& name) { return absl::StrCat(durability, "-", name); };
    WriteJob();
    Train({"--workers", "2", "--durability", durability}, run("first"));
    const internal::v1::CheckpointManifest last = Newest(Checkpoints(run("first")));
    EXPECT_EQ(last.progress().examples(), 3 * 157);
    WriteJob({{"epochs: 3", "epochs: 5"}});
    const Summary longer =
        Train({"--workers", "2", "--durability", durability, "--resume", Path(run("first"))}, run("longer"));
    EXPECT_EQ(longer.examples, 5 * 157);
    Train({"--workers", "2"}, run("whole"));
    EXPECT_EQ(Values(run("longer")), Values(run("whole"))) << durability;
  }
}

TEST_F(CheckpointTest, AFinishedRunOfAllItsEpochsHasNothingLeft) {
  WriteJob({{"policy {", "durability { mode: CHECKPOINT }\npolicy {"}});
  Train({"--workers", "2"}, "first");
  ChildProcess launch = Launch({"--workers", "2", "--json", "--resume", Path("first")}, "again");
  const Summary again = Finish(launch);
  EXPECT_THAT(launch.output(), HasSubstr("nothing is left to train"));
  EXPECT_EQ(again.examples, 3 * 157);
  EXPECT_EQ(Values("again"), Values("first"));
}

TEST_F(CheckpointTest, ServersStartedByHandTakeOneWhenTheyAreStopped) {
  WriteJob({{"epochs: 3", absl::StrCat("epochs: ", kEpochs)},
            {"policy {", "durability { mode: CHECKPOINT checkpoint_seconds: 3600 }\npolicy {"}});
  const std::vector<std::string> common = {"--servers", "2", "--workers", "1", "--checkpoint_dir", Path("saved")};
  const auto with = [&](std::vector<std::string> flags) {
    flags.insert(flags.end(), common.begin(), common.end());
    return flags;
  };
  ChildProcess first = StartServer(with({"--rank", "0"}));
  const std::string home = address_;
  ChildProcess second = StartServer(with({"--rank", "1", "--coordinator", home}));
  address_ = home;
  ChildProcess worker = StartWorker({"--run_dir", Path("run")});
  ASSERT_TRUE(worker.AwaitOutput(kUnderWay)) << worker.output();
  for (ChildProcess* server : {&first, &second}) server->Signal(SIGTERM);
  for (ChildProcess* server : {&first, &second}) {
    EXPECT_EQ(server->Wait().ToString(), "ended with status 0") << server->output();
  }
  EXPECT_THAT(first.output(), HasSubstr("checkpoint 1 saved at step ")) << first.output();
  const auto entries = CheckpointFolder(PosixFileSystem(), Path("saved")).List();
  ASSERT_TRUE(entries.ok()) << entries.status();
  EXPECT_GT(Newest(*entries).progress().examples(), 0);
}

}  // namespace
}  // namespace ballast
