// SPDX-License-Identifier: Apache-2.0
// Models with tables, by `ballast launch` with real servers and workers, on planted clicks.
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "tests/testing/job_test.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;

class ClickModelsTest : public JobTest {
 protected:
  // Writes a small DLRM. `changes` replaces parts of the job file's text.
  void WriteClickJob(const std::vector<std::pair<std::string, std::string>>& changes = {}) const {
    std::string text = R"(name: "clicks"
seed: 3
data {
  train { planted_clicks { rows: 40000 end: 30000 ids: 300 drift: 0 } }
  test { planted_clicks { rows: 40000 begin: 30000 ids: 300 drift: 0 } }
}
model {
  tables { name: "ids" dim: 8 optimizer { adagrad { learning_rate: 0.1 } } }
  layers { dense { units: 8 } }
  layers { embedding { table: "ids" } }
  layers { dot_interaction { dim: 8 } }
  layers { dense { units: 16 } }
  layers { relu {} }
  layers { dense { units: 1 } }
  loss { sigmoid_cross_entropy {} }
}
training { epochs: 1 batch_size: 256 }
optimizer { adagrad { learning_rate: 0.02 } }
policy { sync { deterministic: true } }
)";
    for (const auto& [from, to] : changes) {
      ASSERT_NE(text.find(from), std::string::npos) << from;
      text = absl::StrReplaceAll(text, {{from, to}});
    }
    Write("job.textproto", text);
  }

  // Runs a job that must fail before it trains; returns what it says.
  std::string Refusal() const {
    ChildProcess launch = Launch({});
    EXPECT_NE(launch.Wait().ToString(), "ended with status 0");
    return launch.output();
  }
};

const std::vector<std::string> kTwoAndTwo = {"--servers", "2", "--workers", "2"};

TEST_F(ClickModelsTest, EveryModeLearns) {
  const std::pair<const char*, std::vector<std::pair<std::string, std::string>>> kModes[] = {
      {"sync", {}},
      {"async", {{"sync { deterministic: true }", "async {}"}}},
      // Scaling lowers the rates, on a loaded machine most.
      {"scaled",
       {{"sync { deterministic: true }", "async { scale_by_staleness: true }"},
        {"learning_rate: 0.02", "learning_rate: 0.05"}}},
      {"scaled_table",
       {{"sync { deterministic: true }", "async { scale_by_staleness: true staleness_of: TABLE }"},
        {"learning_rate: 0.02", "learning_rate: 0.05"}}},
      {"bounded", {{"sync { deterministic: true }", "bounded { steps_ahead: 2 }"}}},
      {"hybrid", {{"dim: 8 optimizer", "dim: 8 policy { async {} } optimizer"}}},
      {"accumulated", {{"batch_size: 256", "batch_size: 64 accumulate_batches: 4"}}},
      {"bf16",
       {{"optimizer { adagrad { learning_rate: 0.02 } }",
         "optimizer { adagrad { learning_rate: 0.02 } } codec { gradients: ENCODING_BF16 values: ENCODING_BF16 }"}}},
  };
  for (const auto& [mode, changes] : kModes) {
    WriteClickJob(changes);
    const auto summary = Train(kTwoAndTwo, mode);
    SCOPED_TRACE(mode);
    EXPECT_EQ(summary["examples"], 30000);
    EXPECT_GT(summary["test_auc"], 0.64);
    EXPECT_LT(summary["test_auc"], summary["bayes_auc"]);
    EXPECT_NEAR(summary["bayes_auc"].get<double>(), 0.80, 0.03);
    EXPECT_LT(summary["log_loss"], 0.6);
    EXPECT_GT(summary["rows"], 1000);
    EXPECT_GT(summary["samples_per_second"], 0);
    EXPECT_EQ(summary["pushes_lost"], 0);
  }
}

TEST_F(ClickModelsTest, DeterministicSyncGivesTheSameBitsOnAnyNumberOfServers) {
  WriteClickJob();
  const auto one = Train({"--servers", "1", "--workers", "2"}, "one");
  const auto three = Train({"--servers", "3", "--workers", "2"}, "three");
  EXPECT_EQ(one["test_auc"], three["test_auc"]);
  EXPECT_EQ(one["log_loss"], three["log_loss"]);
  EXPECT_EQ(one["rows"], three["rows"]);
  const std::vector<LoadedTensor> a = Model("one"), b = Model("three");
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i].values, b[i].values) << a[i].name;
}

TEST_F(ClickModelsTest, AccumulatedBatchesAreOneLargeBatch) {
  WriteClickJob();
  const auto large = Train({"--workers", "1"}, "large");
  WriteClickJob({{"batch_size: 256", "batch_size: 64 accumulate_batches: 4"}});
  const auto small = Train({"--workers", "1"}, "small");
  EXPECT_EQ(large["steps"], small["steps"]);
  EXPECT_EQ(large["rows"], small["rows"]);
  EXPECT_NEAR(large["test_auc"].get<double>(), small["test_auc"].get<double>(), 2e-3);
}

TEST_F(ClickModelsTest, NothingIsLostOrDoubledWhenServersAndWorkersAreKilled) {
  WriteClickJob({{"sync { deterministic: true }", "async {}"}, {"epochs: 1", "epochs: 8"}});
  const auto calm = Train(kTwoAndTwo, "calm");
  std::vector<std::string> flags = kTwoAndTwo;
  flags.insert(flags.end(), {"--durability", "wal", "--chaos", "kill-server=2s,kill-worker=3s"});
  const auto killed = Train(flags, "killed");
  EXPECT_EQ(killed["pushes_lost"], 0);
  EXPECT_EQ(killed["pushes_duplicated"], 0);
  EXPECT_GE(killed["restarts"], 1);
  EXPECT_NEAR(killed["test_auc"].get<double>(), calm["test_auc"].get<double>(), 0.02);
}

TEST_F(ClickModelsTest, AnIdThatIsNotAdmittedHasNoRow) {
  WriteClickJob();
  const auto all = Train(kTwoAndTwo, "all");
  WriteClickJob({{"dim: 8 optimizer", "dim: 8 admission { min_uses: 60 } optimizer"}});
  const auto few = Train(kTwoAndTwo, "few");
  EXPECT_LT(few["rows"], all["rows"]);
  EXPECT_GT(few["rows"], 0);
}

TEST_F(ClickModelsTest, LabelsOtherThan0And1AreRefused) {
  Write("train.csv", "user,label\nana,0\nben,2\n");
  WriteClickJob({{"planted_clicks { rows: 40000 end: 30000 ids: 300 drift: 0 }",
                  "csv { path: 'train.csv' header: true label: 'label' hashed: 'user' }"},
                 {"test { planted_clicks { rows: 40000 begin: 30000 ids: 300 drift: 0 } }", ""},
                 {"layers { dense { units: 8 } }", ""},
                 {"layers { dot_interaction { dim: 8 } }", ""}});
  EXPECT_THAT(Refusal(), HasSubstr("train.csv:3: label is 2, want 0 or 1"));
}

TEST_F(ClickModelsTest, BadInputEndsTheLaunchAndNamesItsPlace) {
  const std::vector<std::string> numbers(13, "7"), ids(26, "1f");
  const auto line = [](const std::string& label, const std::vector<std::string>& a, const std::vector<std::string>& b) {
    return absl::StrCat(label, "\t", absl::StrJoin(a, "\t"), "\t", absl::StrJoin(b, "\t"), "\n");
  };
  const std::string good = line("1", numbers, ids);
  Write("good.tsv", good + line("0", numbers, ids));
  Write("short.tsv", good + line("1", numbers, std::vector<std::string>(24, "1f")));
  std::vector<std::string> wide = ids;
  wide[6] = "10000000000000000";
  Write("wide.tsv", good + line("1", numbers, wide));
  Write("label.tsv", good + line("2", numbers, ids));
  Write("train.csv", "user,item,label\nana,x,0\nben,y,1\n");
  Write("test.csv", "user,label\nana,0\n");
  const std::string table = "tables { name: 'ids' dim: 4 }", layer = "layers { embedding { table: 'ids' } }";
  const auto refusal = [&](const std::string& data, const std::string& model) {
    Write("job.textproto", absl::StrCat("name: 'bad'\ndata { ", data, " }\nmodel { ", model, R"(
  layers { dense { units: 1 } } loss { sigmoid_cross_entropy {} } }
training { epochs: 1 batch_size: 2 } optimizer { sgd { learning_rate: 0.1 } }
)"));
    ChildProcess launch = Launch({});
    EXPECT_EQ(launch.Wait().ToString(), "ended with status 2") << data << model;
    std::filesystem::remove_all(Path("run"));
    return launch.output();
  };
  const auto criteo = [](const std::string& file) { return absl::StrCat("train { criteo { path: '", file, "' } }"); };
  EXPECT_THAT(refusal(criteo("short.tsv"), table + layer),
              HasSubstr("short.tsv:2: got 38 columns, want 40: label, 13 numbers, 26 categories"));
  EXPECT_THAT(refusal(criteo("wide.tsv"), table + layer),
              HasSubstr("wide.tsv:2: column 21 (counted from 1): got \"10000000000000000\", want at most 16 hex"));
  EXPECT_THAT(refusal(criteo("label.tsv"), table + layer),
              HasSubstr("label.tsv:2: column 1 (counted from 1): got \"2\", want 0 or 1, the label"));
  EXPECT_THAT(refusal("train { csv { path: 'train.csv' header: true label: 'label' hashed: 'user' hashed: 'item' } } "
                      "test { csv { path: 'test.csv' header: true } }",
                      table + layer),
              HasSubstr("test.csv:1: has no column \"item\", want the columns of the training data"));
  EXPECT_THAT(refusal(criteo("good.tsv"), table),
              HasSubstr("job.textproto:3:9: model.tables[0]: got \"ids\", which no layer looks up"));
  EXPECT_THAT(refusal(criteo("good.tsv"), layer),
              HasSubstr("model.layers[0].embedding.table: got \"ids\", want a table, but model.tables has none"));
  EXPECT_THAT(refusal(criteo("good.tsv"), table + "layers { embedding { table: 'ids' fields: 'C27' } }"),
              HasSubstr("the data has no field of ids \"C27\", want one of its 26"));
}

}  // namespace
}  // namespace ballast
