// SPDX-License-Identifier: Apache-2.0
#include "common/job/job_fields.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>

#include "ballast/v1/job.pb.h"

namespace ballast {
namespace {

constexpr char kJob[] = R"(
  model { layers { dense { units: 8 } } layers { conv2d { filters: 2 kernel: [3, 5] } } }
  training { epochs: 3 batch_size: 8 }
  optimizer { adam { learning_rate: 0.5 } schedule { cosine {} } }
  policy { sync { quorum: 2 } }
  freeze: "a"
)";

v1::Job Job() {
  v1::Job job;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(kJob, &job));
  return job;
}

TEST(SetFieldTest, SetsEveryKindOfField) {
  // Setting, the path it returns, and text that the job then has.
  const struct {
    const char* setting;
    const char* path;
    const char* then;
  } cases[] = {
      {"training.epochs=7", "training.epochs", "training { epochs: 7 batch_size: 8 }"},
      {"training.batch-size= 16 ", "training.batch_size", "batch_size: 16 }"},
      {"training.epochs=0", "training.epochs", "training { batch_size: 8 }"},
      {"training.no_shuffle=TRUE", "training.no_shuffle", "no_shuffle: true"},
      {"training.precision=bf16", "training.precision", "precision: BF16"},
      {"codec.gradients=int8", "codec.gradients", "codec { gradients: ENCODING_INT8 }"},
      {"codec.gradients=encoding_sign", "codec.gradients", "codec { gradients: ENCODING_SIGN }"},
      {"name=a b = c", "name", "name: \"a b = c\""},
      {"name=\"quoted\"", "name", "name: \"quoted\""},
      {"optimizer.adam.learning_rate=1e-3", "optimizer.adam.learning_rate", "adam { learning_rate: 0.001 } schedule"},
      {"optimizer.adam.beta1=0", "optimizer.adam.beta1", "beta1: 0 }"},
      {"data.normalization.mean=-1.5", "data.normalization.mean", "normalization { mean: -1.5 }"},
      {"policy.async={}", "policy.async", "policy { async { } }"},
      {"policy.async=", "policy.async", "policy { async { } }"},
      {"policy=bounded { steps_ahead: 4 }", "policy", "policy { bounded { steps_ahead: 4 } }"},
      {"policy={ bounded { steps_ahead: 4 } }", "policy", "policy { bounded { steps_ahead: 4 } }"},
      {"policy.bounded.steps_ahead=4", "policy.bounded.steps_ahead", "policy { bounded { steps_ahead: 4 } }"},
      {"optimizer=sgd { learning_rate: 2 }  # simpler", "optimizer", "optimizer { sgd { learning_rate: 2 } }"},
      {"model.layers[0].dense.units=64", "model.layers[0].dense.units", "layers { dense { units: 64 } } layers"},
      {"model.layers[-1].conv2d.filters=9", "model.layers[1].conv2d.filters", "filters: 9"},
      {"model.layers[1]=gelu {}", "model.layers[1]", "units: 8 } } layers { gelu { } } }"},
      {"model.layers[2]=relu {}", "model.layers[2]", "kernel: 5 } } layers { relu { } } }"},
      {"model.layers[+].dropout.rate=0.5", "model.layers[2].dropout.rate", "layers { dropout { rate: 0.5 } } }"},
      {"model.layers[1].conv2d.kernel[1]=7", "model.layers[1].conv2d.kernel[1]", "kernel: 3 kernel: 7"},
      {"model.layers[1].conv2d.kernel=1", "model.layers[1].conv2d.kernel", "filters: 2 kernel: 1 }"},
      {"model.layers[1].conv2d.stride=[2, 4]", "model.layers[1].conv2d.stride", "stride: 2 stride: 4"},
      {"freeze[+]=b", "freeze[1]", "freeze: \"a\" freeze: \"b\""},
      {"freeze=[\"x\", \"y\"]", "freeze", "freeze: \"x\" freeze: \"y\""},
      {"model.layers[0].custom.numbers[alpha]=2", "model.layers[0].custom.numbers[alpha]",
       "numbers { key: \"alpha\" value: 2 }"},
  };
  for (const auto& one : cases) {
    v1::Job job = Job();
    const absl::StatusOr<std::string> path = SetField(job, one.setting);
    ASSERT_TRUE(path.ok()) << path.status();
    EXPECT_EQ(*path, one.path);
    EXPECT_THAT(job.ShortDebugString(), ::testing::HasSubstr(one.then)) << one.setting;
  }
}

TEST(SetFieldTest, NamesPathGotAndWant) {
  const std::pair<const char*, const char*> cases[] = {
      {"training.epochs", "got \"training.epochs\", want FIELD=VALUE, such as training.epochs=3"},
      {"=3", "got the path \"\", want names with dots between them, such as model.layers[0].dense.units"},
      {"model.layers[0.dense=",
       "got the path \"model.layers[0.dense\", want names with dots between them, such as "
       "model.layers[0].dense.units"},
      {"training.epoch=3", "training has no field \"epoch\"; did you mean training.epochs?"},
      {"trainin.epochs=3", "the job has no field \"trainin\"; did you mean training?"},
      {"epochs=3", "the job has no field \"epochs\"; did you mean training.epochs?"},
      {"batch-size=3", "the job has no field \"batch_size\"; did you mean training.batch_size?"},
      {"learning_rate=3", "the job has no field \"learning_rate\"; did you mean optimizer.adam.learning_rate?"},
      {"optimizer.lr=3", "optimizer has no field \"lr\"; did you mean optimizer.adam.learning_rate?"},
      {"filters=3", "the job has no field \"filters\"; did you mean model.layers[1].conv2d.filters?"},
      {"policy.bounded.staleness=3", "policy.bounded has no field \"staleness\"; its name is \"steps_ahead\" now"},
      {"model.loss.zzzzzzzz=",
       "model.loss has no field \"zzzzzzzz\"; valid names are softmax_cross_entropy, "
       "mean_squared_error, sigmoid_cross_entropy"},
      {"training.epochs.x=3", "training.epochs has no fields, want training.epochs=VALUE"},
      {"model.layers.dense.units=3", "model.layers: got no index, want one, such as model.layers[0]"},
      {"model.layers[9].dense.units=3",
       "model.layers: got index 9, want 0 to 2 or +: it has 2 elements, and 2 or + adds one"},
      {"model.layers[x].dense.units=3",
       "model.layers: got index x, want 0 to 2 or +: it has 2 elements, and 2 or + adds one"},
      {"training[0].epochs=3", "training: got index 0, want none: it is no repeated field"},
      {"training.epochs=many", "training.epochs: got \"many\", want a whole number of at least 0"},
      {"training.epochs=-1", "training.epochs: got \"-1\", want a whole number of at least 0"},
      {"training.epochs=3 batch_size: 4",
       "training.epochs: got \"3 batch_size: 4\", want a whole number of at least 0"},
      {"training.epochs=", "training.epochs: got \"\", want a whole number of at least 0"},
      {"training.no_shuffle=maybe", "training.no_shuffle: got \"maybe\", want true or false"},
      {"training.precision=bf61", "training.precision has no value \"BF61\"; did you mean \"BF16\"?"},
      {"optimizer.adam.learning_rate=fast", "optimizer.adam.learning_rate: got \"fast\", want a number"},
      {"policy=bounded { step: 4 }",
       "policy.bounded has no field \"step\"; valid names are \"steps_ahead\", "
       "\"scale_by_staleness\", \"staleness_of\""},
      {"policy=bounded { steps_ahead: 4", "policy is opened here and never closed, want }"},
  };
  for (const auto& [setting, message] : cases) {
    v1::Job job = Job();
    EXPECT_EQ(SetField(job, setting).status(), absl::InvalidArgumentError(message)) << setting;
  }
}

TEST(SetFieldTest, RefusesAPathThatIsDeeperThanAnyJob) {
  std::string path = "model";
  for (int i = 0; i < 10000; ++i) path += ".layers[+].residual";
  v1::Job job;
  EXPECT_EQ(SetField(job, path + "={}").status().message(),
            "got the path \"" + path.substr(0, 80) + "...\", want at most 32 names");
}

TEST(FindNearestFieldTest, PrefersExactNamesThenWhatTheJobHas) {
  EXPECT_EQ(FindNearestField(Job(), "learning-rate").path, "optimizer.adam.learning_rate");
  EXPECT_EQ(FindNearestField(v1::Job(), "learning_rate").path, "optimizer.sgd.learning_rate");
  EXPECT_EQ(FindNearestField(Job(), "epoch").path, "training.epochs");
  EXPECT_EQ(FindNearestField(Job(), "epoch").distance, 1);
  EXPECT_EQ(FindNearestField(Job(), "bs").path, "training.batch_size");
  EXPECT_EQ(FindNearestField(Job(), "qwertyuiop").path, "");
}

TEST(FirstDifferenceTest, NamesTheFieldAndBothValues) {
  EXPECT_EQ(FirstDifference(Job(), Job()), "");
  const std::pair<const char*, const char*> cases[] = {
      {"training.epochs=7", "training.epochs: got 7, want 3"},
      {"training.wait_seconds=5", "training.wait_seconds: got 5, want 0"},
      {"optimizer.adam.beta1=0.5", "optimizer.adam.beta1: got 0.5, want nothing"},
      {"optimizer.sgd={}", "optimizer: got sgd, want adam"},
      {"optimizer.schedule.cosine.total=9", "optimizer.schedule.cosine.total: got 9, want 0"},
      {"data.train.csv.path=x", "data: got { train { csv { path: \"x\" } } }, want nothing"},
      {"model.layers[0].dense.units=9", "model.layers[0].dense.units: got 9, want 8"},
      {"model.layers[+]=relu {}", "model.layers[2]: got { relu { } }, want nothing"},
      {"model.layers[1].conv2d.kernel=[3]", "model.layers[1].conv2d.kernel[1]: got nothing, want 5"},
  };
  for (const auto& [setting, difference] : cases) {
    v1::Job job = Job();
    ASSERT_TRUE(SetField(job, setting).ok()) << setting;
    EXPECT_EQ(FirstDifference(job, Job()), difference);
  }
}

TEST(MergeOverTest, ReplacesListsAndMergesMessages) {
  v1::Job over;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(
      "model { layers { relu {} } } training { epochs: 9 } policy { async {} }", &over));
  v1::Job job = Job();
  MergeOver(over, job);
  EXPECT_EQ(job.model().ShortDebugString(), "layers { relu { } }");
  EXPECT_EQ(job.training().ShortDebugString(), "epochs: 9 batch_size: 8");
  EXPECT_EQ(job.policy().ShortDebugString(), "async { }");
  EXPECT_TRUE(job.optimizer().has_adam());
}

}  // namespace
}  // namespace ballast
