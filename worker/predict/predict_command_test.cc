// SPDX-License-Identifier: Apache-2.0
#include "worker/predict/predict_command.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "common/run/model_description.h"
#include "common/run/safetensors.h"
#include "common/storage/file.h"
#include "worker/data/datasets/table_schema.h"
#include "worker/model/model_fixture.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using std::string_literals::operator""s;

constexpr char kClassifier[] = "layers { dense { units: 2 no_bias: true } } loss { softmax_cross_entropy {} }";
constexpr char kRegression[] = "layers { dense { units: 1 } } loss { mean_squared_error {} }";
constexpr char kCsv[] = "train { csv { label_column: -1 } }";

// Runs the commands on model files whose weights the test chooses, for examples of two features.
class PredictCommandTest : public ::testing::Test {
 protected:
  PredictCommandTest() {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }

  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  std::string Write(const std::string& name, const std::string& content) const {
    std::ofstream(Path(name), std::ios::binary) << content;
    return Path(name);
  }

  static ModelDescription Description(const std::string& model, const std::string& data,
                                      const std::string& table = "") {
    v1::Job job;
    *job.mutable_model() = ParseModel(model);
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(data, job.mutable_data())) << data;
    return DescribeModel(job, 2, table);
  }

  // The outputs of the classifier are its two features; that of the regression is 10 x + 100 y + 1.
  std::string WriteClassifier(const ModelDescription& description) const {
    const std::vector<float> identity = {1, 0, 0, 1};
    EXPECT_TRUE(WriteSafetensors(Path("m"), {{"dense1/weight", {2, 2}, identity}}, ToMetadata(description, 5)).ok());
    return Path("m");
  }
  std::string WriteRegression(const ModelDescription& description) const {
    const std::vector<float> weight = {10, 100}, bias = {1};
    EXPECT_TRUE(WriteSafetensors(Path("m"), {{"dense1/weight", {1, 2}, weight}, {"dense1/bias", {1}, bias}},
                                 ToMetadata(description, 5))
                    .ok());
    return Path("m");
  }

  // Runs a command that writes to out_ or, to predict, to the file `out`.
  int Run(const std::string& name, std::vector<std::string> args) {
    args.insert(args.end(), {"--device", "cpu", "--threads", "1"});
    std::ostringstream out, err;
    const int status = RunModelCommand(name, args, out, err);
    out_ = out.str();
    err_ = err.str();
    return status;
  }
  std::string Predict(std::vector<std::string> args) {
    args.insert(args.end(), {"--out", Path("out")});
    EXPECT_EQ(Run("predict", args), 0) << err_;
    return ReadFile(Path("out")).value_or("");
  }

  const std::string folder_ = ::testing::TempDir() + "/predict_command";
  std::string out_, err_;
};

TEST_F(PredictCommandTest, PredictsNumbersFromRowsWithAndWithoutLabel) {
  const std::string model = WriteRegression(Description(kRegression, kCsv));
  EXPECT_EQ(Predict({model, "--data", Write("a.csv", "1,2\n0.5,0\n")}), "prediction\n211\n6\n");
  EXPECT_EQ(Predict({model, "--data", Write("a.csv", "1,2,7\n0.5,0,8\n")}), "prediction\n211\n6\n");
  EXPECT_EQ(Predict({model, "--json", "--data", Write("a.csv", "1,2\n")}), "{\"prediction\":211}\n");
}

TEST_F(PredictCommandTest, PredictsClassesFromEachFormat) {
  const std::string images = Write("images", "\0\0\x08\x02\0\0\0\x02\0\0\0\x02\x07\x07\x00\xff"s);
  const std::string rows = Write("rows", "1:7 2:7\n2:255\n"), table = Write("a.csv", "7,7\n0,255\n");
  const std::string want = "class,p_0,p_1\n0,0.5,0.5\n1,0,1\n";
  const struct {
    const char* trained;
    std::vector<std::string> flags;
  } cases[] = {
      {"train { idx {} }", {"--data", images}},
      {"train { libsvm { features: 2 } }", {"--data", rows}},
      {"train { csv {} }", {"--data", table}},
      {"train { idx {} }", {"--data", rows, "--format", "libsvm"}},
      {"train { idx {} }", {"--data", table, "--format", "csv"}},
      {"train { libsvm { features: 2 } }", {"--data", images, "--format", "idx {}"}},
  };
  for (const auto& each : cases) {
    std::vector<std::string> args = {WriteClassifier(Description(kClassifier, each.trained))};
    args.insert(args.end(), each.flags.begin(), each.flags.end());
    EXPECT_EQ(Predict(args), want) << each.trained << each.flags[1];
  }
}

TEST_F(PredictCommandTest, NormalizesAsInTraining) {
  const ModelDescription description = Description(kRegression, "train { idx {} } normalization { mean: 5 stddev: 2 }");
  const std::string images = Write("images", "\0\0\x08\x02\0\0\0\x01\0\0\0\x02\x07\x03"s);
  EXPECT_EQ(Predict({WriteRegression(description), "--data", images}), "prediction\n-89\n");
}

TEST_F(PredictCommandTest, ATablesColumnsAndClassesAreThoseOfTheTrainingData) {
  TableSchema schema;
  schema.columns.resize(3);
  schema.columns[0] = {.name = "age", .mean = 10, .stddev = 5};
  schema.columns[1] = {.name = "pet", .kind = TableColumn::Kind::kLabel};
  schema.columns[2] = {.name = "color", .kind = TableColumn::Kind::kCategory, .categories = {"red"}};
  schema.has_names = true;
  schema.text_labels = true;
  schema.classes = {"cat", "dog"};
  const std::string model =
      WriteClassifier(Description(kClassifier, "train { csv { header: true } }", schema.ToJson()));
  EXPECT_EQ(Predict({model, "--data", Write("a.csv", "color,more,age\nred,1,15\nblue,2,1010\n")}),
            "class,p_cat,p_dog\ncat,0.5,0.5\ncat,1,0\n");
  EXPECT_EQ(Run("predict", {model, "--data", Write("a.csv", "color,more\nred,1\n")}), 2);
  EXPECT_THAT(err_, HasSubstr("has no column \"age\""));
  EXPECT_EQ(Run("predict", {model, "--data", Path("a.csv"), "--format", "idx"}), 2);
  EXPECT_THAT(err_, HasSubstr("flag --format: got idx, want csv, from which the model was trained"));
  ASSERT_EQ(Run("eval", {model, "--data", Write("a.csv", "pet,color,age\ncat,blue,1010\ndog,blue,1010\n"), "--json"}),
            0);
  EXPECT_THAT(out_, HasSubstr("\"accuracy\":0.5,"));
}

TEST_F(PredictCommandTest, AFormatThatContradictsTheTrainingDataIsRefused) {
  TableSchema schema;
  schema.columns.resize(3);
  schema.columns[2].kind = TableColumn::Kind::kLabel;
  const std::string model = WriteRegression(Description(kRegression, kCsv, schema.ToJson()));
  const std::string data = Write("a.csv", "1,2\n");
  EXPECT_EQ(Run("predict", {model, "--data", data, "--format", "csv { missing: MEAN }"}), 2);
  EXPECT_THAT(err_, HasSubstr("flag --format: csv.missing: got another value than in data.train"));
  EXPECT_EQ(Run("predict", {model, "--data", data, "--format", "csv { delimiter: 'ab' }"}), 2);
  EXPECT_THAT(err_, HasSubstr("flag --format: csv.delimiter: got \"ab\", want one character"));
}

TEST_F(PredictCommandTest, WhatIsReadIsNotReplaced) {
  const std::string model = WriteRegression(Description(kRegression, kCsv));
  const std::string data = Write("a.csv", "1,2\n");
  for (const std::string& input : {model, data}) {
    EXPECT_EQ(Run("predict", {model, "--data", data, "--out", input}), 2);
    EXPECT_EQ(err_, "error: flag --out: got " + input + ", which is read, want another file\n");
  }
  EXPECT_EQ(ReadFile(data).value_or(""), "1,2\n");
}

TEST_F(PredictCommandTest, TakesARunDirectory) {
  std::filesystem::create_directories(Path("run"));
  std::filesystem::rename(WriteRegression(Description(kRegression, kCsv)), Path("run/model.safetensors"));
  EXPECT_EQ(Predict({Path("run"), "--data", Write("a.csv", "1,2\n")}), "prediction\n211\n");
}

TEST_F(PredictCommandTest, PredictsEveryExampleOfSeveralBatchesInOrder) {
  std::string rows, want = "prediction\n";
  for (int i = 0; i < 1000; ++i) {
    rows += std::to_string(i) + ",0\n";
    want += std::to_string(10 * i + 1) + "\n";
  }
  const std::string model = WriteRegression(Description(kRegression, kCsv));
  EXPECT_EQ(Predict({model, "--data", Write("a.csv", rows)}), want);
}

TEST_F(PredictCommandTest, EvaluatesOnDataWithLabels) {
  const std::string model = WriteRegression(Description(kRegression, kCsv));
  ASSERT_EQ(Run("eval", {model, "--data", Write("a.csv", "1,2,210\n0,0,4\n")}), 0) << err_;
  EXPECT_EQ(out_, "loss 5 on 2 examples\n");
  const std::string classifier = WriteClassifier(Description(kClassifier, kCsv));
  ASSERT_EQ(Run("eval", {classifier, "--data", Path("a.csv"), "--json"}), 2);
  EXPECT_THAT(err_, HasSubstr("a.csv:2: label is 4, want a whole number from 0 to 1"));
  ASSERT_EQ(Run("eval", {classifier, "--data", Write("a.csv", "0,0,0\n0,0,1\n"), "--json"}), 0) << err_;
  EXPECT_EQ(out_, "{\"loss\":0.6931471824645996,\"accuracy\":0.5,\"examples\":2}\n");
}

TEST_F(PredictCommandTest, ALogitGivesTheProbabilitiesOfItsTwoClasses) {
  const std::string model =
      WriteRegression(Description("layers { dense { units: 1 } } loss { sigmoid_cross_entropy {} }", kCsv));
  EXPECT_EQ(Predict({model, "--data", Write("a.csv", "0,0,0\n0,-10,0\n")}),
            "class,p_0,p_1\n1,0.26894143,0.7310586\n0,1,0\n");
  ASSERT_EQ(Run("eval", {model, "--data", Write("a.csv", "0,0,1\n0,-10,0\n")}), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("accuracy 1.0000, AUC 1.0000"));
  EXPECT_EQ(Run("eval", {model, "--data", Write("a.csv", "0,0,2\n")}), 2);
  EXPECT_THAT(err_, HasSubstr("a.csv:1: label is 2, want 0 or 1"));
}

TEST_F(PredictCommandTest, AModelWhoseTablesAreMissingIsRefused) {
  v1::Job job;
  *job.mutable_model() = ParseModel(
      "tables { name: 't' dim: 4 } layers { embedding { table: 't' } } layers { dense { units: 1 } } loss { "
      "sigmoid_cross_entropy {} }");
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(kCsv, job.mutable_data()));
  const std::vector<float> weight = {1, 2, 3, 4}, bias = {1};
  ASSERT_TRUE(WriteSafetensors(Path("m"), {{"dense1/weight", {1, 4}, weight}, {"dense1/bias", {1}, bias}},
                               ToMetadata(DescribeModel(job, 0, "", {"user"}), 5))
                  .ok());
  EXPECT_EQ(Run("predict", {Path("m"), "--data", Write("a.csv", "0,0,0\n")}), 2);
  EXPECT_THAT(err_, HasSubstr("the model has table \"t\", whose rows are missing: "));
}

TEST_F(PredictCommandTest, ImagesAreEvaluatedWithTheirLabels) {
  const std::string model = WriteClassifier(Description(kClassifier, "train { idx {} }"));
  const std::string images = Write("images", "\0\0\x08\x02\0\0\0\x02\0\0\0\x02\x01\x09\x09\x01"s);
  EXPECT_EQ(Run("eval", {model, "--data", images}), 2);
  EXPECT_EQ(err_, "error: flag --labels: got nothing, want the file with the labels of the images\n");
  const std::string labels = Write("labels", "\0\0\x08\x01\0\0\0\x02\x01\x01"s);
  EXPECT_EQ(Run("eval", {model, "--data", images, "--labels", labels}), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("accuracy 0.5000 on 2 examples"));
}

TEST_F(PredictCommandTest, DataThatDoNotFitAreRefused) {
  const std::string model = WriteRegression(Description(kRegression, kCsv));
  Write("a.csv", "1,2,3,4\n");
  const struct {
    std::vector<std::string> args;
    const char* error;
  } cases[] = {
      {{}, "predict: got 0 models, want exactly one"},
      {{model, model}, "predict: got 2 models, want exactly one"},
      {{model}, "flag --data: got nothing, want a value"},
      {{model, "--data", Path("none.csv")}, "none.csv"},
      {{model, "--data", Path("a.csv")}, "a.csv:1: "},
      {{model, "--data", Path("a.csv"), "--labels", "l"},
       "flag --labels: got it with format csv, want it only with idx"},
      {{model, "--data", Path("a.csv"), "--format", "cvs"}, "did you mean \"csv\"?"},
      {{model, "--data", Path("a.csv"), "--format", "csv { heading: true }"}, "has no field \"heading\""},
      {{model, "--data", Path("a.csv"), "--format", "csv {"},
       "flag --format: csv is opened here and never closed, want }"},
      {{model, "--date", "x"}, "did you mean"},
  };
  for (const auto& each : cases) {
    EXPECT_EQ(Run("predict", each.args), 2) << each.error;
    EXPECT_THAT(err_, HasSubstr(each.error));
  }
}

TEST_F(PredictCommandTest, AModelFileThatIsNoneIsRefused) {
  const std::string data = Write("a.csv", "1,2\n");
  const std::vector<float> two = {1, 2}, one = {1};
  const auto expect = [&](const std::string& error) {
    EXPECT_EQ(Run("predict", {Path("m"), "--data", data}), 2);
    EXPECT_THAT(err_, HasSubstr(Path("m") + ": " + error));
  };
  Write("m", "not a model at all");
  expect("header of ");
  ASSERT_TRUE(WriteSafetensors(Path("m"), {{"w", {2}, two}}, {{"job", "old"}}).ok());
  expect("got no \"model\" in the metadata");
  const auto metadata = ToMetadata(Description(kRegression, kCsv), 1);
  ASSERT_TRUE(WriteSafetensors(Path("m"), {{"dense1/weight", {1, 2}, two}, {"b", {1}, one}}, metadata).ok());
  expect("lacks \"dense1/bias\"");
  ASSERT_TRUE(WriteSafetensors(Path("m"), {{"dense1/weight", {2, 1}, two}, {"dense1/bias", {1}, one}}, metadata).ok());
  expect("tensor \"dense1/weight\" has shape [2, 1], want [1, 2]");
  const auto huge = ToMetadata(
      Description(
          "layers { dense { units: 1048576 } } layers { dense { units: 1048576 } } layers { dense { units: 1 } } "
          "loss { mean_squared_error {} }",
          kCsv),
      1);
  ASSERT_TRUE(WriteSafetensors(Path("m"), {{"w", {2}, two}}, huge).ok());
  expect("has 2 weights, want 1099516870657 for its layers");
}

TEST_F(PredictCommandTest, AFailureLeavesNoOutput) {
  const std::string model = WriteRegression(Description(kRegression, kCsv));
  const std::string data = Write("a.csv", "1,2\n");
  Write("out", "old");
  EXPECT_EQ(Run("predict", {model, "--data", Write("b.csv", "1,x\n"), "--out", Path("out")}), 2);
  EXPECT_EQ(ReadFile(Path("out")).value_or(""), "old");
  EXPECT_EQ(Run("predict", {model, "--data", data, "--out", Path("no/where")}), 2);
  EXPECT_THAT(err_, HasSubstr("cannot write " + Path("no/where")));
  EXPECT_EQ(Run("predict", {model, "--data", data, "--out", "/dev/full"}), 1);
  EXPECT_THAT(err_, HasSubstr("cannot write /dev/full"));
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    EXPECT_NE(entry.path().extension(), ".tmp") << entry.path();
  }
}

TEST_F(PredictCommandTest, AFailureIsOneJsonObjectToo) {
  EXPECT_EQ(Run("eval", {Path("none"), "--data", "a.csv", "--json"}), 2);
  EXPECT_THAT(out_, HasSubstr("\"exit_code\":2}\n"));
  EXPECT_EQ(Run("predict", {"--json", "--no-such-flag"}), 2);
  EXPECT_THAT(out_, HasSubstr("{\"error\":\"unknown flag --no-such-flag"));
  EXPECT_THAT(out_, HasSubstr("\"reason\":\"INVALID_ARGUMENT\",\"exit_code\":2}\n"));
}

TEST_F(PredictCommandTest, HelpListsTheFlags) {
  for (const char* name : {"predict", "eval"}) {
    EXPECT_EQ(Run(name, {"--help"}), 0);
    EXPECT_THAT(out_, HasSubstr("usage: ballast "s + name));
    EXPECT_THAT(out_, HasSubstr("--data FILE"));
  }
}

}  // namespace
}  // namespace ballast
