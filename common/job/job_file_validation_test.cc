// SPDX-License-Identifier: Apache-2.0
#include "common/job/job_file_validation.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace ballast {
namespace {

using ::testing::EndsWith;
using ::testing::StartsWith;

constexpr char kGood[] = R"(
  name: "tiny"
  data {
    train { idx { images: "images" labels: "labels" } }
    test { csv { path: "test.csv" delimiter: ";" } }
    normalization { mean: 0 stddev: 2 }
  }
  model {
    layers { name: "first" dense { units: 4 initializer { normal { stddev: 0 } } } }
    layers { dropout { rate: 0.5 } }
    layers { dense { units: 1048576 } }
    loss { softmax_cross_entropy {} }
  }
  training { epochs: 1000000 batch_size: 1 wait_seconds: 600 }
  optimizer { adam { learning_rate: 0.001 } }
)";

v1::Job Good() {
  v1::Job job;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(kGood, &job));
  return job;
}

std::string Layer(const std::string& text) { return "model { layers { " + text + " } }"; }

// Merges a change into the good job; only the fields given in the change are replaced.
absl::Status ValidateWith(const std::string& change) {
  v1::Job job = Good();
  v1::Job overlay;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(change, &overlay)) << change;
  job.MergeFrom(overlay);
  return ValidateJob(job);
}

void ExpectFault(const std::string& change, const std::string& message) {
  EXPECT_EQ(ValidateWith(change), absl::InvalidArgumentError(message)) << change;
}

TEST(ValidateJobTest, AcceptsValuesAtTheirLimits) { EXPECT_EQ(ValidateJob(Good()), absl::OkStatus()); }

TEST(ValidateJobTest, RefusesABadName) {
  const std::string want = ", want 1 to 63 of a-z, 0-9, '_' and '-', starting with a letter";
  ExpectFault("name: \"Fashion\"", "name: got \"Fashion\"" + want);
  ExpectFault("name: \"1st\"", "name: got \"1st\"" + want);
  ExpectFault("name: \"a/../b\"", "name: got \"a/../b\"" + want);
  ExpectFault("name: \"a\\nb\"", "name: got \"a\\nb\"" + want);
  v1::Job job = Good();
  job.clear_name();
  EXPECT_EQ(ValidateJob(job).message(), "name: got \"\"" + want);
  job.set_name(std::string(63, 'a'));
  EXPECT_TRUE(ValidateJob(job).ok());
  job.set_name(std::string(64, 'a'));
  EXPECT_FALSE(ValidateJob(job).ok());
}

TEST(ValidateJobTest, RefusesBadTraining) {
  ExpectFault("training { epochs: 1000001 }", "training.epochs: got 1000001, want 1 to 1000000");
  ExpectFault("training { batch_size: 1048577 }", "training.batch_size: got 1048577, want 1 to 1048576");
  ExpectFault("training { wait_seconds: 601 }", "training.wait_seconds: got 601, want 1 to 600, or nothing for 60");
  ExpectFault("training { accumulate_batches: 65537 }",
              "training.accumulate_batches: got 65537, want 1 to 65536, or nothing for 1");
  v1::Job job = Good();
  job.clear_training();
  EXPECT_EQ(ValidateJob(job).message(),
            "training.epochs: got 0, want 1 to 1000000\ntraining.batch_size: got 0, want 1 to 1048576");
}

TEST(ValidateJobTest, RefusesToDecideByEvaluationsThatThereAreNot) {
  ExpectFault("training { early_stopping {} }", "training.early_stopping.epochs: got 0, want 1 to 1000000");
  ExpectFault("training { early_stopping { epochs: 1 min_change: -1 } }",
              "training.early_stopping.min_change: got -1, want a finite number of at least 0");
  ExpectFault("training { keep_best: 9 }",
              "training.keep_best: got 9, want TEST_METRIC_UNSPECIFIED, TEST_ACCURACY, TEST_LOSS or TEST_AUC");
  EXPECT_EQ(ValidateWith("training { early_stopping { epochs: 3 metric: TEST_ACCURACY } keep_best: TEST_LOSS }"),
            absl::OkStatus());
  v1::Job job = Good();
  job.mutable_training()->mutable_early_stopping()->set_epochs(3);
  job.mutable_training()->set_keep_best(v1::TEST_ACCURACY);
  job.mutable_data()->clear_test();
  EXPECT_EQ(ValidateJob(job).message(),
            "training.early_stopping: got no test data, want data.test or data.test_share\n"
            "training.keep_best: got no test data, want data.test or data.test_share");
  job.mutable_data()->set_test_share(0.1);
  EXPECT_EQ(ValidateJob(job), absl::OkStatus());
  job.mutable_model()->mutable_loss()->mutable_mean_squared_error();
  EXPECT_EQ(ValidateJob(job).message(),
            "training.keep_best: got TEST_ACCURACY with mean_squared_error, want TEST_LOSS: accuracy is for "
            "classification");
}

TEST(ValidateJobTest, DecidesByAucOnlyIfTheModelPredictsOneOfTwoLabels) {
  v1::Job job = Good();
  job.mutable_training()->mutable_early_stopping()->set_epochs(3);
  job.mutable_training()->mutable_early_stopping()->set_metric(v1::TEST_AUC);
  job.mutable_training()->set_keep_best(v1::TEST_AUC);
  EXPECT_EQ(ValidateJob(job).message(),
            "training.early_stopping.metric: got TEST_AUC without sigmoid_cross_entropy, want another metric: AUC is "
            "for one of two labels\n"
            "training.keep_best: got TEST_AUC without sigmoid_cross_entropy, want another metric: AUC is for one of "
            "two labels");
  job.mutable_model()->mutable_loss()->mutable_sigmoid_cross_entropy();
  EXPECT_EQ(ValidateJob(job), absl::OkStatus());
  job.mutable_training()->set_keep_best(v1::TEST_ACCURACY);
  EXPECT_EQ(ValidateJob(job), absl::OkStatus());
}

// The tests of ValidateOptimizer cover every limit.
TEST(ValidateJobTest, RefusesABadOptimizer) {
  EXPECT_FALSE(ValidateWith("optimizer { sgd { learning_rate: 0 } }").ok());
  EXPECT_FALSE(ValidateWith("optimizer { weight_decay: -1 }").ok());
  EXPECT_FALSE(ValidateWith("optimizer { schedule { cosine { min_rate_ratio: 2 } } }").ok());
  EXPECT_FALSE(ValidateWith("optimizer { adam { learning_rate: 1 beta1: 1 } }").ok());
  v1::Job job = Good();
  job.clear_optimizer();
  EXPECT_FALSE(ValidateJob(job).ok());
}

TEST(ValidateJobTest, TakesAScheduleWhoseTotalIsTheJobsLength) {
  EXPECT_EQ(ValidateWith("optimizer { schedule { cosine {} } }"), absl::OkStatus());
  EXPECT_EQ(ValidateWith("optimizer { schedule { one_cycle {} } }"), absl::OkStatus());
}

// The tests of ValidateCodec cover every limit.
TEST(ValidateJobTest, RefusesABadCodec) {
  EXPECT_THAT(std::string(ValidateWith("codec { values: ENCODING_SIGN }").message()),
              StartsWith("codec of values: got sign, which is for gradients only"));
  EXPECT_EQ(ValidateWith("codec { values: ENCODING_INT8 }"), absl::OkStatus());
  EXPECT_FALSE(ValidateWith("codec { values: ENCODING_INT8 top_k_fraction: 1.5 }").ok());
}

TEST(ValidateJobTest, RefusesABadModel) {
  ExpectFault(Layer("dense { units: 0 }"), "model.layers[3].dense.units: got 0, want 1 to 1048576");
  ExpectFault(Layer("dense { units: 1048577 }"), "model.layers[3].dense.units: got 1048577, want 1 to 1048576");
  ExpectFault(Layer("dense { units: 1 inputs: -3 }"),
              "model.layers[3].dense.inputs: got -3, want at least 1, or nothing for what the input has");
  ExpectFault(Layer("dropout { rate: 1 }"), "model.layers[3].dropout.rate: got 1, want a number in [0, 1)");
  ExpectFault(Layer("dropout { rate: nan }"), "model.layers[3].dropout.rate: got nan, want a number in [0, 1)");
  ExpectFault(Layer("name: \"x\""),
              "model.layers[3]: got nothing, want dense, relu, gelu, tanh, dropout, conv2d, max_pool, average_pool, "
              "batch_norm, layer_norm, residual, custom, embedding or dot_interaction");
  ExpectFault(Layer("name: \"first\" relu {}"),
              "model.layers[3].name: got \"first\", want a name that no earlier layer has");
  ExpectFault(Layer("name: \"a b\" relu {}"),
              "model.layers[3].name: got \"a b\", want at most 240 printable characters, no spaces");
  v1::Job job = Good();
  job.clear_model();
  EXPECT_EQ(ValidateJob(job).message(),
            "model.layers: got nothing, want at least 1 layer\n"
            "model.loss: got nothing, want softmax_cross_entropy, mean_squared_error or sigmoid_cross_entropy");
}

TEST(ValidateJobTest, RefusesADeviceThatIsNoDevice) {
  const auto on = [](const std::string& device) { return Layer("relu {} device: \"" + device + "\""); };
  for (const std::string device : {"gpu", "-1", "64", "01", "0 ", "CPU"}) {
    ExpectFault(on(device), "model.layers[3].device: got \"" + device +
                                "\", want \"cpu\", a GPU's number from \"0\" to \"63\", or nothing");
  }
  for (const char* device : {"cpu", "0", "63"}) EXPECT_EQ(ValidateWith(on(device)), absl::OkStatus()) << device;
}

TEST(ValidateJobTest, AcceptsConvolutionModelsAtTheirLimits) {
  EXPECT_EQ(ValidateWith(R"(model {
    input { height: 1 width: 1099511627776 }
    layers { conv2d { filters: 1048576 kernel: [1, 65536] stride: 65536 padding: 0 } }
    layers { average_pool {} }
    layers { max_pool { kernel: 2 stride: [1, 1] padding: 1 } }
    layers { batch_norm { epsilon: 1 momentum: 1 } }
    layers { residual { layers { layer_norm { epsilon: 1e-30 } } shortcut { relu {} } } }
  })"),
            absl::OkStatus());
}

TEST(ValidateJobTest, RefusesABadConvolutionModel) {
  const std::string field = "model.layers[3].";
  ExpectFault("model { input { height: 28 width: -1 } }", "model.input.width: got -1, want 1 to 1099511627776");
  ExpectFault("model { input { width: 2 channels: -2 } }",
              "model.input.height: got 0, want 1 to 1099511627776\n"
              "model.input.channels: got -2, want 1 to 1099511627776, or nothing for 1");
  ExpectFault(Layer("conv2d { kernel: 3 }"), field + "conv2d.filters: got 0, want 1 to 1048576");
  ExpectFault(Layer("conv2d { filters: 1048577 kernel: 3 }"), field + "conv2d.filters: got 1048577, want 1 to 1048576");
  ExpectFault(Layer("conv2d { filters: 1 }"), field + "conv2d.kernel: got nothing, want the size of the window");
  ExpectFault(Layer("conv2d { filters: 1 kernel: 0 }"), field + "conv2d.kernel: got 0, want 1 to 65536");
  ExpectFault(Layer("conv2d { filters: 1 kernel: [1, 2, 3] }"), field + "conv2d.kernel: got 3 numbers, want at most 2");
  ExpectFault(Layer("conv2d { filters: 1 kernel: 3 stride: 0 }"), field + "conv2d.stride: got 0, want 1 to 65536");
  ExpectFault(Layer("conv2d { filters: 1 kernel: 3 padding: -1 }"), field + "conv2d.padding: got -1, want 0 to 65536");
  ExpectFault(Layer("conv2d { filters: 1 kernel: 3 initializer { constant { value: nan } } }"),
              field + "conv2d.initializer.constant.value: got nan, want a finite number");
  ExpectFault(Layer("max_pool { kernel: 65537 }"), field + "max_pool.kernel: got 65537, want 1 to 65536");
  ExpectFault(Layer("average_pool { stride: [2, 0] }"), field + "average_pool.stride: got 0, want 1 to 65536");
  ExpectFault(Layer("batch_norm { epsilon: -1 }"),
              field + "batch_norm.epsilon: got -1, want a number in (0, 1], or nothing for 1e-5");
  ExpectFault(Layer("batch_norm { momentum: 1.5 }"),
              field + "batch_norm.momentum: got 1.5, want a number in (0, 1], or nothing for 0.1");
  ExpectFault(Layer("layer_norm { epsilon: nan }"),
              field + "layer_norm.epsilon: got nan, want a number in (0, 1], or nothing for 1e-5");
}

TEST(ValidateJobTest, RefusesABadResidual) {
  ExpectFault(Layer("residual {}"), "model.layers[3].residual.layers: got nothing, want at least 1 layer");
  ExpectFault(Layer("residual { layers { relu {} } layers { dense {} } }"),
              "model.layers[3].residual.layers[1].dense.units: got 0, want 1 to 1048576");
  ExpectFault(Layer("residual { layers { relu {} } shortcut { dropout { rate: 1 } } }"),
              "model.layers[3].residual.shortcut[0].dropout.rate: got 1, want a number in [0, 1)");
  ExpectFault(Layer("residual { layers { name: \"first\" relu {} } }"),
              "model.layers[3].residual.layers[0].name: got \"first\", want a name that no earlier layer has");
  ExpectFault(
      Layer("name: \"" + std::string(239, 'r') + "\" residual { layers { relu {} } }"),
      "model.layers[3].name: got \"" + std::string(80, 'r') + "\", want at most 238 printable characters, no spaces");
  std::string deep = "relu {}", field = "model.layers[3]";
  for (int i = 0; i < 9; ++i) deep = "residual { layers { " + deep + " } }";
  for (int i = 0; i < 8; ++i) field += ".residual.layers[0]";
  ExpectFault(Layer(deep), field + ".residual: got a place inside 8 other residuals, want at most 8 levels");
}

TEST(ValidateJobTest, RefusesABadInitializer) {
  const auto dense = [](const std::string& initializer) {
    return Layer("dense { units: 1 initializer { " + initializer + " } }");
  };
  const std::string field = "model.layers[3].dense.initializer";
  ExpectFault(dense("constant { value: inf }"), field + ".constant.value: got inf, want a finite number");
  ExpectFault(dense("uniform { low: 1 high: 1 }"), field + ".uniform: got low 1, high 1, want low below high");
  ExpectFault(dense("normal { stddev: -1 }"), field + ".normal.stddev: got -1, want a finite number of at least 0");
  ExpectFault(dense("normal { mean: nan }"), field + ".normal.mean: got nan, want a finite number");
  ExpectFault(dense("provided {}"), field + ": got provided, want another initializer: init_from gives initial values");
}

TEST(ValidateJobTest, FrozenLayersNeedInitFromAndAreLayers) {
  EXPECT_EQ(ValidateWith("init_from: 'm' freeze: 'first' freeze: 'dense2'"), absl::OkStatus());
  ExpectFault("freeze: 'first'", "freeze: got 1 layers, but no init_from, want init_from, which has their values");
  ExpectFault("init_from: 'm' freeze: 'dense3'",
              "freeze[0]: got \"dense3\", want the name of a layer, like \"dense2\"");
  ExpectFault("init_from: 'm' freeze: 'first' freeze: 'first'", "freeze[1]: got \"first\", want each layer once");
}

TEST(ValidateJobTest, RefusesFieldsOfTablesThatContradict) {
  const struct {
    const char* change;
    const char* message;
  } cases[] = {
      {"data { test_share: 0.5 }", "data.test_share: got 0.5, want nothing, because data.test is set"},
      {"data { train { csv { path: \"x\" label: \"y\" label_column: -1 } } }",
       "data.train.csv.label: got \"y\", want header: true with it, or label_column instead\n"
       "data.train.csv.label_column: got -1, want nothing, because label is set"},
      {"data { train { csv { path: \"x\" } } normalization { per_column: true } }",
       "data.normalization.per_column: got true with a mean or stddev, want one or the other"},
      {"data { train { idx { images: \"x\" labels: \"y\" } } normalization { per_column: true } }",
       "data.normalization.per_column: got true with a mean or stddev, want one or the other\n"
       "data.normalization.per_column: got true, want csv data"},
      {"data { train { csv { path: \"x\" label_column: -1 } } test { csv { label_column: 2 } } }",
       "data.test.csv.label_column: got another value than in data.train, want nothing: test data has the columns of "
       "the training data"},
      {"data { train { csv { path: \"x\" categories: \"a\" } } test { csv { categories: \"b\" } } }",
       "data.test.csv.categories: got another value than in data.train, want nothing: test data has the columns of "
       "the training data"},
  };
  for (const auto& each : cases) ExpectFault(each.change, each.message);
}

TEST(ValidateJobTest, RefusesColumnsOfIdsThatContradict) {
  const std::string train = "data { train { csv { path: 'x' hashed: 'a' looked_up: 'b' id_separator: '|' ";
  const std::string other =
      ": got another value than in data.train, want nothing: test data has the columns of the training data";
  EXPECT_EQ(ValidateWith(train + "} } test { csv { hashed: 'a' looked_up: 'b' id_separator: '|' } } }"),
            absl::OkStatus());
  const struct {
    std::string change;
    std::string message;
  } cases[] = {
      {train + "categories: 'a' } } }",
       "data.train.csv.hashed: got \"a\", want another column, because categories has it"},
      {train + "ignore: 'b' } } }", "data.train.csv.looked_up: got \"b\", want another column, because ignore has it"},
      {train + "looked_up: 'a' } } }",
       "data.train.csv.looked_up: got \"a\", want another column, because hashed has it"},
      {train + "delimiter: '|' } } }",
       "data.train.csv.id_separator: got \"|\", want one character other than the delimiter and quotes"},
      {"data { train { csv { path: 'x' hashed: 'a' id_separator: '||' } } }",
       "data.train.csv.id_separator: got \"||\", want one character other than the delimiter and quotes"},
      {train + "} } test { csv { hashed: 'c' } } }", "data.test.csv.hashed" + other},
      {train + "} } test { csv { looked_up: 'c' } } }", "data.test.csv.looked_up" + other},
      {train + "} } test { csv { id_separator: ';' } } }",
       "data.test.csv.id_separator: got \";\", want one character other than the delimiter and quotes\n"
       "data.test.csv.id_separator" +
           other},
  };
  for (const auto& each : cases) ExpectFault(each.change, each.message);
}

TEST(ValidateJobTest, RefusesPlantedClicksWithoutRowsOrOfTwoTruths) {
  const std::string train = "data { train { planted_clicks { rows: 100 end: 80 } } ";
  EXPECT_EQ(ValidateWith(train + "test { planted_clicks { rows: 100 begin: 80 days: 7 } } }"), absl::OkStatus());
  const struct {
    std::string change;
    const char* message;
  } cases[] = {
      {"data { train { planted_clicks { rows: 100 end: 101 } } }",
       "data.train.planted_clicks.end: got 101, want at most 100, the rows"},
      {"data { train { planted_clicks { rows: 100 begin: 80 end: 80 } } }",
       "data.train.planted_clicks.begin: got 80, want less than 80, the end"},
      {train + "test { planted_clicks { rows: 100 begin: 100 } } }",
       "data.test.planted_clicks.begin: got 100, want less than 100, the end"},
      {train + "test { planted_clicks { rows: 90 } } }",
       "data.test.planted_clicks.rows: got 90, want 100, as in data.train"},
      {train + "test { planted_clicks { rows: 100 seed: 2 } } }",
       "data.test.planted_clicks.seed: got 2, want 0, as in data.train"},
      {train + "test { planted_clicks { rows: 100 days: 8 drift: 0 ids: 9 click_rate: 0.5 deviation: 2 } } }",
       "data.test.planted_clicks.days: got 8, want 7, as in data.train\n"
       "data.test.planted_clicks.drift: got 0, want 0.02, as in data.train\n"
       "data.test.planted_clicks.ids: got 9, want 10131227, as in data.train\n"
       "data.test.planted_clicks.click_rate: got 0.5, want 0.256, as in data.train\n"
       "data.test.planted_clicks.deviation: got 2, want 1.4, as in data.train"},
  };
  for (const auto& each : cases) ExpectFault(each.change, each.message);
}

TEST(ValidateJobTest, TakesTestDataThatRepeatsTheTrainingColumns) {
  EXPECT_EQ(ValidateWith("data { train { csv { path: \"x\" header: true label: \"y\" categories: \"a\" } } "
                         "test { csv { header: true label: \"y\" categories: \"a\" } } }"),
            absl::OkStatus());
}

TEST(ValidateJobTest, RefusesBadData) {
  ExpectFault("data { train { idx { images: \"\" } } test { csv { delimiter: \"::\" } } }",
              "data.test.csv.delimiter: got \"::\", want one character that cannot be part of a number");
  ExpectFault("data { test { csv { delimiter: \"1\" } } }",
              "data.test.csv.delimiter: got \"1\", want one character that cannot be part of a number");
  ExpectFault("data { test { libsvm { path: \"x\" } } }", "data.test.libsvm.features: got 0, want at least 1");
  ExpectFault("data { normalization { mean: inf } }", "data.normalization.mean: got inf, want a finite number");
  ExpectFault("data { normalization { stddev: 0 } }", "data.normalization.stddev: got 0, want a finite number above 0");
  v1::Job job = Good();
  job.mutable_data()->mutable_test()->clear_format();
  EXPECT_EQ(ValidateJob(job).message(),
            "data.test: got nothing, want idx, csv, libsvm, criteo, libffm or planted_clicks");
  job.clear_data();
  EXPECT_EQ(ValidateJob(job).message(),
            "data.train: got nothing, want idx, csv, libsvm, criteo, libffm or planted_clicks");
  job.mutable_data()->mutable_train()->mutable_idx()->set_images("images");
  EXPECT_EQ(ValidateJob(job).message(), "data.train.idx.labels: got nothing, want a path");
}

TEST(ValidateJobTest, AStreamIsTextThatNeedsNoStatistics) {
  const auto data = [](const std::string& train, const std::string& sample = "") {
    return absl::StrCat("policy { async {} } data { stream { sample: \"", sample, "\" } ", train, " }");
  };
  EXPECT_EQ(ValidateWith(data("train { csv { path: \"clicks\" hashed: \"user\" } }")), absl::OkStatus());
  EXPECT_EQ(ValidateWith(data("train { criteo { path: \"clicks\" } }")), absl::OkStatus());
  ExpectFault(data("train { idx { images: \"a\" labels: \"b\" } }"),
              "data.stream: got data.train of another format, want csv, criteo, libffm or libsvm: rows of text");
  ExpectFault(data("train { criteo { path: \"clicks.gz\" } }"),
              "data.train: got \"clicks.gz\", want plain text: a stream is not compressed");
  ExpectFault(data("train { csv { path: \"a\" missing: MEAN } }"),
              "data.train.csv.missing: got a value that is found in all rows, want data.stream.sample too, whose rows "
              "have it");
  EXPECT_EQ(ValidateWith(data("train { csv { path: \"a\" missing: MEAN } }", "b")), absl::OkStatus());
  ExpectFault(data("train { criteo { path: \"a\" } }", "b"), "data.stream.sample: got \"b\", want nothing: only csv needs one");
  ExpectFault(data("train { criteo { path: \"a\" } } test_share: 0.5"),
              "data.test_share: got 0.5, want data.test: a stream has no end\n"
              "data.test_share: got 0.5, want nothing, because data.test is set");
}

TEST(ValidateJobTest, TheWorkersOfAStreamTakeNoCommonSteps) {
  for (const char* policy : {"async {}", "bounded { steps_ahead: 2 }"}) {
    EXPECT_EQ(ValidateWith(absl::StrCat("policy { ", policy, " } data { stream {} train { criteo { path: \"a\" } } }")),
              absl::OkStatus());
  }
  ExpectFault("policy { sync {} } data { stream {} train { criteo { path: \"a\" } } }",
              "policy: got sync, want async or bounded in a job with data.stream: the workers do not take the same "
              "steps");
}

TEST(ValidateJobTest, RefusesAPrecisionThatThereIsNot) {
  ExpectFault("durability { mode: 9 }", "durability.mode: got 9, want NONE, CHECKPOINT, WAL, WAL_SYNC or STANDBY");
  ExpectFault("durability { checkpoint_seconds: 86401 }",
              "durability.checkpoint_seconds: got 86401, want 1 to 86400, or nothing for 60");
  ExpectFault("durability { keep_checkpoints: 1001 }",
              "durability.keep_checkpoints: got 1001, want 1 to 1000, or nothing for 2");
  ExpectFault("durability { return_seconds: 601 }",
              "durability.return_seconds: got 601, want 1 to 600, or nothing for 60");
  ExpectFault("training { precision: 7 }", "training.precision: got 7, want FP32, TF32, BF16 or FP16");
}

TEST(ValidateJobTest, RefusesAPolicyWithoutMode) {
  ExpectFault("policy { }", "policy: got nothing, want sync, async, bounded or local_sgd");
}

TEST(ValidateJobTest, RefusesAPolicyOutOfItsRange) {
  ExpectFault("policy { bounded { steps_ahead: 1000001 } }",
              "policy.bounded.steps_ahead: got 1000001, want 0 to 1000000");
}

TEST(ValidateJobTest, ReportsAtMostFiveFaults) {
  EXPECT_THAT(std::string(ValidateJob(v1::Job()).message()), EndsWith("\nand 2 more"));
}

// A model with one table, and changes to it.
std::string WithTable(const std::string& table, const std::string& rest = "") {
  return "model { tables { name: 't' dim: 8 " + table + " } layers { embedding { table: 't' } } } " + rest;
}

TEST(ValidateJobTest, TablesAndTheirLayersBelongTogether) {
  EXPECT_EQ(ValidateWith(WithTable("")), absl::OkStatus());
  ExpectFault("model { tables { name: 't' dim: 8 } }",
              "model.tables[0]: got \"t\", which no layer looks up, want a layer with embedding { table: \"t\" }");
  ExpectFault("model { layers { embedding { table: 't' } } }",
              "model.layers[3].embedding.table: got \"t\", want a table, but model.tables has none");
  ExpectFault(
      "model { tables { name: 't' dim: 8 } layers { embedding { table: 't' } } layers { residual { layers { "
      "embedding { table: 'tt' } } } } }",
      "model.layers[4].residual.layers[0].embedding.table: got \"tt\", want a table of model.tables, like "
      "\"t\"");
  ExpectFault(
      "model { tables { name: 't' dim: 8 } layers { embedding { table: 't' } } layers { embedding { table: 't' "
      "} } }",
      "model.layers[4].embedding.table: got \"t\", want a table that no earlier layer has");
  EXPECT_THAT(std::string(ValidateWith("model { tables { name: 't' dim: 8 } tables { name: 't' dim: 8 } layers { "
                                       "embedding { table: 't' } } }")
                              .message()),
              StartsWith("model.tables[1].name: got \"t\", want a name that no earlier table has"));
  ExpectFault("model { tables { name: 't' } layers { embedding { table: 't' } } }",
              "model.tables[0].dim: got 0, want 1 to 4096");
}

TEST(ValidateJobTest, TablesHaveSettingsOfTables) {
  EXPECT_EQ(ValidateWith(WithTable("optimizer { row_wise_adagrad { learning_rate: 0.1 } } policy { async {} } "
                                   "admission { min_uses: 4 sketch: true } eviction { ttl_steps: 9 }")),
            absl::OkStatus());
  EXPECT_THAT(std::string(ValidateWith(WithTable("initializer { he_normal {} }")).message()),
              StartsWith("model.tables[0].initializer"));
  EXPECT_THAT(std::string(ValidateWith(WithTable("optimizer { sgd { learning_rate: -1 } }")).message()),
              StartsWith("model.tables[0].optimizer.sgd.learning_rate: got -1"));
  ExpectFault(WithTable("policy { local_sgd { local_steps: 2 learning_rate: 0.1 } }"),
              "model.tables[0].policy: got local_sgd, want sync, async or bounded");
  ExpectFault(
      WithTable("policy { sync {} }", "policy { async {} }"),
      "model.tables[0].policy: got sync in a job without it, want async or bounded: the workers do not take the "
      "same steps");
  ExpectFault(WithTable("", "policy { local_sgd { local_steps: 2 learning_rate: 0.1 } }"),
              "policy: got local_sgd, want another policy: rows of tables have no local steps");
  ExpectFault(WithTable("", "training { keep_best: TEST_LOSS }"),
              "training.keep_best: got a metric and tables, want nothing: the rows of an earlier epoch are not kept");
  ExpectFault(WithTable("", "training { precision: FP16 }"),
              "training.precision: got FP16, want FP32, TF32 or BF16: gradients of rows are not scaled");
}

TEST(ValidateJobTest, StalenessOfTheTableNeedsATableThatFollowsThePolicy) {
  const std::string async = "policy { async { scale_by_staleness: true staleness_of: TABLE } }";
  const std::string bounded = "policy { bounded { steps_ahead: 2 scale_by_staleness: true staleness_of: TABLE } }";
  EXPECT_EQ(ValidateWith(WithTable("", async)), absl::OkStatus());
  EXPECT_EQ(ValidateWith(WithTable("", bounded)), absl::OkStatus());
  EXPECT_EQ(ValidateWith(WithTable(async)), absl::OkStatus());
  ExpectFault(async, "policy.async.staleness_of: got TABLE, want it only in a model with tables");
  ExpectFault(bounded, "policy.bounded.staleness_of: got TABLE, want it only in a model with tables");
  ExpectFault(WithTable("policy { async {} }", async),
              "policy.async.staleness_of: got TABLE, want it only if a table of the model has no policy of its own");
  ExpectFault(WithTable("policy { async { staleness_of: TABLE } }"),
              "model.tables[0].policy.async.staleness_of: got TABLE without scale_by_staleness, want "
              "scale_by_staleness: true beside it, or ROW");
}

}  // namespace

}  // namespace ballast
