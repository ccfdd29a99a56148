// SPDX-License-Identifier: Apache-2.0
#include "common/job/limits.h"

#include <google/protobuf/text_format.h>

#include <string>

#include "ballast/v1/job.pb.h"
#include "gmock/gmock.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;

template <typename Message>
std::string Error(const std::string& text, const std::string& path = "m") {
  Message message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message)) << text;
  return std::string(CheckLimits(message, path).message());
}

TEST(LimitsTest, AcceptNumbersAtTheirBounds) {
  EXPECT_EQ(Error<v1::Training>("epochs: 1 batch_size: 1048576 wait_seconds: 600"), "");
  EXPECT_EQ(Error<v1::Optimizer::Adam>("learning_rate: 1e-30 beta1: 0 beta2: 0.99"), "");
}

TEST(LimitsTest, NameFieldGotAndWant) {
  EXPECT_EQ(Error<v1::Training>("epochs: 1000001 batch_size: 1"), "m.epochs: got 1000001, want 1 to 1000000");
  EXPECT_EQ(Error<v1::Optimizer::Adam>("learning_rate: 0.1 beta1: 1"), "m.beta1: got 1, want a number in [0, 1)");
  EXPECT_EQ(Error<v1::Optimizer::Adam>("learning_rate: -1"), "m.learning_rate: got -1, want a finite number above 0");
  EXPECT_EQ(Error<v1::Optimizer::Ftrl>("learning_rate: 1 l1: -1"), "m.l1: got -1, want a finite number of at least 0");
  EXPECT_EQ(Error<v1::Libsvm>("path: \"p\""), "m.features: got 0, want at least 1");
}

TEST(LimitsTest, RefuseNumbersThatAreNotFinite) {
  EXPECT_EQ(Error<v1::Optimizer::Sgd>("learning_rate: nan"), "m.learning_rate: got nan, want a finite number above 0");
  EXPECT_EQ(Error<v1::Optimizer::Sgd>("learning_rate: inf"), "m.learning_rate: got inf, want a finite number above 0");
  EXPECT_EQ(Error<v1::Initializer>("normal { mean: nan }"), "m.normal.mean: got nan, want a finite number");
}

TEST(LimitsTest, LetZeroStandForADefaultOnlyWhereOneIsNamed) {
  EXPECT_EQ(Error<v1::Durability>("checkpoint_seconds: 0"), "");
  EXPECT_EQ(Error<v1::Durability>("checkpoint_seconds: 86401"),
            "m.checkpoint_seconds: got 86401, want 1 to 86400, or nothing for 60");
  EXPECT_EQ(Error<v1::Training>("epochs: 1"), "m.batch_size: got 0, want 1 to 1048576");
}

TEST(LimitsTest, CheckAFieldWithPresenceOnlyIfItIsSet) {
  EXPECT_EQ(Error<v1::Optimizer::Adagrad>("learning_rate: 1"), "");
  EXPECT_EQ(Error<v1::Optimizer::Adagrad>("learning_rate: 1 epsilon: 0"),
            "m.epsilon: got 0, want a finite number above 0");
}

TEST(LimitsTest, CheckEveryElementAndTheirNumber) {
  EXPECT_EQ(Error<v1::Pool>("kernel: [1, 65537]"), "m.kernel: got 65537, want 1 to 65536");
  EXPECT_EQ(Error<v1::Pool>("kernel: [1, 1, 1]"), "m.kernel: got 3 numbers, want at most 2");
}

TEST(LimitsTest, WantOneOfTheKindsAndWhatIsRequired) {
  EXPECT_EQ(Error<v1::Loss>(""),
            "m: got nothing, want softmax_cross_entropy, mean_squared_error or sigmoid_cross_entropy");
  EXPECT_EQ(Error<v1::DataSource>("csv {}"), "m.csv.path: got nothing, want a path");
  EXPECT_EQ(Error<v1::Model>("loss { mean_squared_error {} }"), "m.layers: got nothing, want at least 1 layer");
}

TEST(LimitsTest, CheckAnAbsentMessageThatIsRequired) {
  EXPECT_EQ(Error<v1::Data>(""), "m.train: got nothing, want idx, csv, libsvm, criteo, libffm or planted_clicks");
}

TEST(LimitsTest, WantANameOfAnEnum) {
  v1::Durability durability;
  durability.set_mode(static_cast<v1::Durability::Mode>(9));
  EXPECT_EQ(CheckLimits(durability, "durability").message(),
            "durability.mode: got 9, want NONE, CHECKPOINT, WAL, WAL_SYNC or STANDBY");
}

TEST(LimitsTest, NameThePathFromTheOutermostMessage) {
  ValidationErrors errors;
  v1::Job job;
  job.mutable_model()->add_layers()->mutable_residual();
  CheckLimits(job, "", errors);
  EXPECT_THAT(errors.ToStatus().message(),
              HasSubstr("model.layers[0].residual.layers: got nothing, want at least 1 layer"));
}

TEST(FillNumbersTest, SetsTheDefaultsOfWhatIsNotSet) {
  v1::Optimizer optimizer;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(
      "adam { learning_rate: 1 beta2: 0 } schedule { one_cycle { total: 9 } }", &optimizer));
  FillNumbers(optimizer);
  EXPECT_EQ(optimizer.ShortDebugString(),
            "adam { learning_rate: 1 beta1: 0.9 beta2: 0 epsilon: 1e-08 } "
            "schedule { one_cycle { total: 9 warmup_fraction: 0.3 } }");
  v1::Durability durability;
  FillNumbers(durability);
  EXPECT_EQ(durability.ShortDebugString(), "checkpoint_seconds: 60 keep_checkpoints: 2 return_seconds: 60");
}

// A default that its own limits refuse would make every job that writes it out invalid.
TEST(FillNumbersTest, GivesValuesThatTheLimitsAllow) {
  const google::protobuf::OneofDescriptor* const kinds = v1::Optimizer::descriptor()->FindOneofByName("kind");
  for (int i = 0; i < kinds->field_count(); ++i) {
    v1::Optimizer optimizer;
    google::protobuf::Message* const inner = optimizer.GetReflection()->MutableMessage(&optimizer, kinds->field(i));
    inner->GetReflection()->SetFloat(inner, inner->GetDescriptor()->FindFieldByName("learning_rate"), 0.1f);
    if (auto* const momentum = inner->GetDescriptor()->FindFieldByName("momentum")) {
      inner->GetReflection()->SetFloat(inner, momentum, 0.5f);
    }
    FillNumbers(optimizer);
    EXPECT_TRUE(CheckLimits(optimizer, "optimizer").ok()) << CheckLimits(optimizer, "optimizer");
  }
}

}  // namespace
}  // namespace ballast
