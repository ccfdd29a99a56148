// SPDX-License-Identifier: Apache-2.0
// Tests of the uses of a trained model, by the real programs: predict, evaluate, and train on from its weights.
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "common/storage/checkpoint_folder.h"
#include "gmock/gmock.h"
#include "tests/testing/job_test.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

class ModelUseTest : public JobTest {
 protected:
  // The values of a run's tensor; empty if it has none of that name.
  std::vector<float> Values(const std::string& run, const std::string& name) const {
    for (const LoadedTensor& tensor : Model(run)) {
      if (tensor.name == name) return tensor.values;
    }
    return {};
  }

  // Trains the run `first`, and writes the job of a second, which has another last layer, with `changes`.
  void PrepareSecond(const std::string& freeze, std::vector<std::pair<std::string, std::string>> changes = {}) const {
    WriteJob();
    Train({}, "first");
    changes.push_back({"seed: 5", absl::StrCat("seed: 6 init_from: \"first/model.safetensors\" ", freeze)});
    changes.push_back({"layers { dense { units: 3 } }", "layers { name: \"head\" dense { units: 3 } }"});
    WriteJob(changes);
  }

  static size_t Count(absl::string_view text, absl::string_view part) {
    size_t count = 0;
    for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++count;
    return count;
  }
};

TEST_F(ModelUseTest, EvalGivesTheTestResultsOfTheRun) {
  WriteJob();
  const auto trained = Train({"--workers", "2"});
  const auto result = nlohmann::json::parse(Run({"eval", Path("run"), "--data", Path("test.csv"), "--json"}));
  EXPECT_NEAR(result["loss"].get<double>(), trained["test_loss"].get<double>(), 1e-5);
  EXPECT_EQ(result["accuracy"], trained["test_accuracy"]);
  EXPECT_EQ(result["examples"], 60);
}

TEST_F(ModelUseTest, PredictsTheClassesOfRowsWithoutLabels) {
  WriteJob();
  Train({});
  std::string rows, labels;
  for (absl::string_view line : absl::StrSplit(Read("test.csv"), '\n', absl::SkipEmpty())) {
    absl::StrAppend(&rows, line.substr(0, line.rfind(',')), "\n");
    labels.push_back(line.back());
  }
  Write("new.csv", rows);
  Run({"predict", Path("run"), "--data", Path("new.csv"), "--out", Path("predictions.csv")});
  const std::vector<std::string> lines = absl::StrSplit(Read("predictions.csv"), '\n', absl::SkipEmpty());
  ASSERT_THAT(lines, SizeIs(61));
  EXPECT_EQ(lines[0], "class,p_0,p_1,p_2");
  int right = 0;
  for (size_t i = 0; i < labels.size(); ++i) right += lines[i + 1][0] == labels[i];
  EXPECT_GE(right, 54);
  EXPECT_EQ(Run({"predict", Path("run/model.safetensors"), "--data", Path("test.csv")}), Read("predictions.csv"));
}

TEST_F(ModelUseTest, ARunBeginsWithTheWeightsOfInitFromInEachLayer) {
  WriteJob();
  Train({}, "first");
  WriteJob(
      {{"seed: 5", "seed: 6 init_from: \"first/model.safetensors\""}, {"learning_rate: 0.2", "learning_rate: 1e-30"}});
  Train({"--servers", "2", "--workers", "2"}, "second");
  for (const LoadedTensor& tensor : Model("first"))
    EXPECT_EQ(Values("second", tensor.name), tensor.values) << tensor.name;
}

struct Mode {
  std::string name;
  std::vector<std::string> flags;
  std::string optimizer;
};

class FreezeTest : public ModelUseTest, public ::testing::WithParamInterface<Mode> {};

TEST_P(FreezeTest, FrozenLayersKeepTheirValuesAndOthersLearn) {
  PrepareSecond("freeze: \"dense1\"", {{"sgd { learning_rate: 0.2 }", GetParam().optimizer}});
  std::vector<std::string> flags = {"--servers", "2", "--workers", "2", "--json"};
  flags.insert(flags.end(), GetParam().flags.begin(), GetParam().flags.end());
  ChildProcess launch = Launch(flags, "second");
  EXPECT_GE(Finish(launch).test_accuracy.value_or(0), 0.9) << launch.output();
  EXPECT_EQ(Count(launch.output(), "init_from "), 1) << launch.output();
  EXPECT_THAT(launch.output(), HasSubstr("2 tensors loaded, 2 of them frozen; 2 initialized as usual: head/weight, "
                                         "head/bias; 2 not used: dense2/bias, dense2/weight"));
  EXPECT_THAT(Model("second"), SizeIs(4));
  for (const char* name : {"dense1/weight", "dense1/bias"}) EXPECT_EQ(Values("second", name), Values("first", name));
}

INSTANTIATE_TEST_SUITE_P(
    Modes, FreezeTest,
    ::testing::Values(
        Mode{"Sync", {}, "momentum { learning_rate: 0.05 momentum: 0.9 } weight_decay: 0.001"},
        Mode{"Async", {"--mode", "async"}, "adam { learning_rate: 0.05 } weight_decay: 0.001"},
        Mode{"Bounded", {"--mode", "bounded", "--staleness", "1"}, "sgd { learning_rate: 0.2 } weight_decay: 0.001"},
        Mode{"LocalSgd", {"--mode", "local_sgd", "--local-steps", "2"}, "sgd { learning_rate: 0.2 }"},
        Mode{"Int8", {"--codec", "int8"}, "sgd { learning_rate: 0.2 } weight_decay: 0.001"}),
    [](const auto& mode) { return mode.param.name; });

TEST_F(ModelUseTest, AWorkerThatIsStartedAgainKeepsWhatWasTrained) {
  PrepareSecond("freeze: \"dense1\"", {{"epochs: 3", "epochs: 150"}});
  ChildProcess launch = Launch({"--workers", "2", "--verbose", "--json"}, "second");
  ASSERT_TRUE(launch.AwaitOutput(kUnderWay)) << launch.output();
  Child(launch, "ballast_worker", "0").Signal(SIGKILL);
  const Summary summary = Finish(launch);
  EXPECT_EQ(summary.restarts, 1) << launch.output();
  EXPECT_GE(summary.test_accuracy.value_or(0), 0.9);
  EXPECT_EQ(Count(launch.output(), "note: init_from "), 1) << launch.output();
  EXPECT_EQ(Values("second", "dense1/weight"), Values("first", "dense1/weight"));
}

TEST_F(ModelUseTest, AResumedRunGoesOnFromItsCheckpointAndNotFromInitFrom) {
  PrepareSecond("", {{"epochs: 3", "epochs: 300"},
                     {"policy {", "durability { mode: CHECKPOINT checkpoint_seconds: 1 }\npolicy {"}});
  Train({"--workers", "2"}, "second");
  Train({"--workers", "2", "--resume", FindManifest(Path("second")).value()}, "resumed");
  for (const LoadedTensor& tensor : Model("second")) EXPECT_EQ(Values("resumed", tensor.name), tensor.values);
  std::filesystem::copy_file(Path("second/model.safetensors"), Path("first/model.safetensors"),
                             std::filesystem::copy_options::overwrite_existing);
  ChildProcess changed = Launch({"--workers", "2", "--resume", Path("second")}, "changed");
  EXPECT_NE(changed.Wait().ToString(), "ended with status 0");
  EXPECT_THAT(changed.output(), HasSubstr("its job has another init_from, or the file has changed since"));
}

TEST_F(ModelUseTest, WeightsThatDoNotFitEndTheRunWithTheReason) {
  WriteJob();
  Train({}, "first");
  const struct {
    std::pair<std::string, std::string> change;
    const char* error;
  } cases[] = {
      {{"units: 16", "units: 17"}, "tensor \"dense1/weight\" has shape [16, 4], want [17, 4]"},
      {{"seed: 5", "seed: 5 freeze: \"relu2\""}, "freeze[0]: got \"relu2\", want the name of a layer, like \"relu1\""},
  };
  for (const auto& each : cases) {
    WriteJob({each.change, {"name: \"blobs\"", "name: \"blobs\" init_from: \"first/model.safetensors\""}});
    ChildProcess launch = Launch({}, "second");
    EXPECT_EQ(launch.Wait().ToString(), "ended with status 2") << launch.output();
    EXPECT_THAT(launch.output(), HasSubstr(each.error));
    std::filesystem::remove_all(Path("second"));
  }
  WriteJob({{"seed: 5", "seed: 5 init_from: \"nowhere.safetensors\""}});
  ChildProcess launch = Launch({}, "second");
  EXPECT_EQ(launch.Wait().ToString(), "ended with status 2") << launch.output();
  EXPECT_THAT(launch.output(), HasSubstr("nowhere.safetensors"));
}

}  // namespace
}  // namespace ballast
