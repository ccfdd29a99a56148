// SPDX-License-Identifier: Apache-2.0
#include "common/job/job_config.h"

#include <string>

#include "common/job/kind_names.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

absl::Status Validate(const std::string& text, uint32_t workers = 2) {
  v1::ConsistencyPolicy policy;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &policy)) << text;
  return ValidatePolicy(policy, workers);
}

absl::Status Refused(absl::string_view message) { return absl::InvalidArgumentError(message); }

TEST(PolicyConfigTest, SaysWhatExistsWhereNoneIsSet) {
  EXPECT_EQ(Validate(""), Refused("policy: got nothing, want sync, async, bounded or local_sgd"));
  EXPECT_EQ(Validate("", 0), Refused("policy: got nothing, want sync, async, bounded or local_sgd"));
}

TEST(PolicyConfigTest, AQuorumIsAtMostTheWorkers) {
  EXPECT_EQ(Validate("sync { quorum: 0 }", 4), absl::OkStatus());
  EXPECT_EQ(Validate("sync { quorum: 4 }", 4), absl::OkStatus());
  EXPECT_EQ(Validate("sync { quorum: 5 }", 4),
            Refused("policy.sync.quorum: got 5, want 1 to the number of workers, 4, or 0 for all of them"));
}

TEST(PolicyConfigTest, AQuorumIsNotCheckedWhereTheWorkersAreNotKnown) {
  EXPECT_EQ(Validate("sync { quorum: 5 }", 0), absl::OkStatus());
}

TEST(PolicyConfigTest, DelayCompensationIsFiniteAndNotNegative) {
  EXPECT_EQ(Validate("async { delay_compensation: 0.04 }"), absl::OkStatus());
  EXPECT_EQ(Validate("async { delay_compensation: -1 }"),
            Refused("policy.async.delay_compensation: got -1, want a finite number of at least 0"));
  EXPECT_EQ(Validate("async { delay_compensation: nan }"),
            Refused("policy.async.delay_compensation: got nan, want a finite number of at least 0"));
  EXPECT_FALSE(Validate("async { delay_compensation: inf }").ok());
}

TEST(PolicyConfigTest, StalenessOfTheTableScalesSomething) {
  EXPECT_EQ(Validate("async { scale_by_staleness: true staleness_of: TABLE }"), absl::OkStatus());
  EXPECT_EQ(Validate("bounded { scale_by_staleness: true staleness_of: TABLE }"), absl::OkStatus());
  EXPECT_EQ(Validate("async { staleness_of: ROW }"), absl::OkStatus());
  EXPECT_EQ(Validate("async { staleness_of: TABLE }"),
            Refused("policy.async.staleness_of: got TABLE without scale_by_staleness, want scale_by_staleness: true "
                    "beside it, or ROW"));
  EXPECT_EQ(Validate("bounded { staleness_of: TABLE }"),
            Refused("policy.bounded.staleness_of: got TABLE without scale_by_staleness, want scale_by_staleness: true "
                    "beside it, or ROW"));
  EXPECT_EQ(Validate("async { scale_by_staleness: true staleness_of: 7 }"),
            Refused("policy.async.staleness_of: got 7, want ROW or TABLE"));
}

TEST(PolicyConfigTest, OnlyBoundedPolicyBoundsStaleness) {
  v1::ConsistencyPolicy policy;
  policy.mutable_bounded()->set_steps_ahead(4);
  EXPECT_EQ(StalenessBound(policy, 3), 18u) << "each of the two others may go from 4 steps behind to 5 steps ahead";
  EXPECT_EQ(StalenessBound(policy, 1), 0u);
  policy.mutable_bounded()->set_steps_ahead(0);
  EXPECT_EQ(StalenessBound(policy, 8), 7u);
  policy.mutable_async();
  EXPECT_EQ(StalenessBound(policy, 3), std::nullopt);
}

TEST(PolicyConfigTest, StalenessIsAtMostAMillion) {
  EXPECT_EQ(Validate("bounded { steps_ahead: 0 }"), absl::OkStatus());
  EXPECT_EQ(Validate("bounded { steps_ahead: 1000000 }"), absl::OkStatus());
  EXPECT_EQ(Validate("bounded { steps_ahead: 1000001 }"),
            Refused("policy.bounded.steps_ahead: got 1000001, want 0 to 1000000"));
}

TEST(PolicyConfigTest, LocalSgdTakesAtLeastOneStepAtARateAboveZero) {
  EXPECT_EQ(Validate("local_sgd { local_steps: 1 learning_rate: 0.1 }"), absl::OkStatus());
  EXPECT_EQ(Validate("local_sgd { local_steps: 0 learning_rate: 0.1 }"),
            Refused("policy.local_sgd.local_steps: got 0, want 1 to 1000000"));
  EXPECT_EQ(Validate("local_sgd { local_steps: 1000001 learning_rate: 0.1 }"),
            Refused("policy.local_sgd.local_steps: got 1000001, want 1 to 1000000"));
  EXPECT_EQ(Validate("local_sgd { local_steps: 8 learning_rate: 0 }"),
            Refused("policy.local_sgd.learning_rate: got 0, want a finite number above 0"));
  EXPECT_FALSE(Validate("local_sgd { local_steps: 8 learning_rate: inf }").ok());
}

std::string Fault(const std::string& text, v1::ParameterKind parameter = v1::PARAMETER_KIND_TENSOR) {
  v1::Optimizer optimizer;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &optimizer)) << text;
  const absl::Status status = ValidateOptimizer(optimizer, parameter);
  EXPECT_TRUE(status.ok() || status.code() == absl::StatusCode::kInvalidArgument) << status;
  return std::string(status.message());
}

TEST(OptimizerConfigTest, TakesEveryKindWithItsDefaults) {
  for (v1::ParameterKind parameter : {v1::PARAMETER_KIND_TENSOR, v1::PARAMETER_KIND_TABLE}) {
    for (const std::string& kind : KindNames(*v1::Optimizer::descriptor(), parameter)) {
      const std::string config = kind + " { learning_rate: 0.1" + (kind == "nesterov" ? " momentum: 0.9 }" : " }");
      EXPECT_EQ(Fault(config, parameter), "");
    }
  }
}

TEST(OptimizerConfigTest, SaysWhichKindsThereAreWhereNoneIsSet) {
  EXPECT_EQ(Fault("weight_decay: 1"),
            "optimizer: got nothing, want sgd, momentum, adam, nesterov, adagrad, rmsprop, adamw, lamb, ftrl or lion");
  EXPECT_EQ(Fault("weight_decay: 1", v1::PARAMETER_KIND_TABLE),
            "optimizer: got nothing, want " + KindPhrase(*v1::Optimizer::descriptor()));
}

TEST(OptimizerConfigTest, RefusesATensorTheKindsOfTables) {
  for (const char* kind : {"row_wise_adagrad", "row_wise_adam", "group_ftrl"}) {
    EXPECT_EQ(Fault(std::string(kind) + " { learning_rate: 1 }"),
              std::string("optimizer: got ") + kind +
                  ", want sgd, momentum, adam, nesterov, adagrad, rmsprop, adamw, lamb, ftrl or lion; " + kind +
                  " is for tables only");
  }
}

TEST(OptimizerConfigTest, RefusesEachNumberOfATableOutOfRangeByName) {
  const std::pair<const char*, const char*> cases[] = {
      {"row_wise_adagrad {}", "optimizer.row_wise_adagrad.learning_rate: got 0, want a finite number above 0"},
      {"row_wise_adagrad { learning_rate: 1 epsilon: 0 }",
       "optimizer.row_wise_adagrad.epsilon: got 0, want a finite number above 0"},
      {"row_wise_adam { learning_rate: 1 beta2: 1 }", "optimizer.row_wise_adam.beta2: got 1, want a number in [0, 1)"},
      {"group_ftrl { learning_rate: 1 group_lasso: -1 }",
       "optimizer.group_ftrl.group_lasso: got -1, want a finite number of at least 0"},
  };
  for (const auto& [config, fault] : cases) EXPECT_EQ(Fault(config, v1::PARAMETER_KIND_TABLE), fault);
}

absl::Status ValidateTableInitializer(const std::string& text) {
  v1::Initializer initializer;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &initializer)) << text;
  return ValidateInitializer(initializer, v1::PARAMETER_KIND_TABLE);
}

TEST(InitializerConfigTest, RefusesATableTheKindsThatNeedAShape) {
  for (const char* kind : {"he_normal", "glorot_uniform", "provided"}) {
    EXPECT_EQ(ValidateTableInitializer(std::string(kind) + " {}"),
              Refused(std::string("initializer: got ") + kind + ", want zeros, constant, uniform or normal; " + kind +
                      " is for tensors only"));
  }
  EXPECT_EQ(ValidateTableInitializer(""), absl::OkStatus());
  EXPECT_EQ(ValidateTableInitializer("uniform { low: -1 high: 1 }"), absl::OkStatus());
  EXPECT_EQ(ValidateTableInitializer("uniform { low: 1 }"),
            Refused("initializer.uniform: got low 1 and high 0, want low <= high"));
}

struct Case {
  const char* config;
  const char* fault;
};

TEST(OptimizerConfigTest, RefusesEachNumberOutOfRangeByName) {
  const Case cases[] = {
      {"sgd {}", "optimizer.sgd.learning_rate: got 0, want a finite number above 0"},
      {"sgd { learning_rate: -1 }", "optimizer.sgd.learning_rate: got -1, want a finite number above 0"},
      {"sgd { learning_rate: inf }", "optimizer.sgd.learning_rate: got inf, want a finite number above 0"},
      {"sgd { learning_rate: nan }", "optimizer.sgd.learning_rate: got nan, want a finite number above 0"},
      {"momentum { momentum: 0.5 }", "optimizer.momentum.learning_rate: got 0, want a finite number above 0"},
      {"momentum { learning_rate: 1 momentum: 1 }", "optimizer.momentum.momentum: got 1, want a number in [0, 1)"},
      {"momentum { learning_rate: 1 momentum: nan }", "optimizer.momentum.momentum: got nan, want a number in [0, 1)"},
      {"nesterov { momentum: 0.5 }", "optimizer.nesterov.learning_rate: got 0, want a finite number above 0"},
      {"nesterov { learning_rate: 1 }", "optimizer.nesterov.momentum: got 0, want a number in (0, 1)"},
      {"adagrad {}", "optimizer.adagrad.learning_rate: got 0, want a finite number above 0"},
      {"adagrad { learning_rate: 1 epsilon: 0 }", "optimizer.adagrad.epsilon: got 0, want a finite number above 0"},
      {"rmsprop {}", "optimizer.rmsprop.learning_rate: got 0, want a finite number above 0"},
      {"rmsprop { learning_rate: 1 alpha: 1 }", "optimizer.rmsprop.alpha: got 1, want a number in [0, 1)"},
      {"rmsprop { learning_rate: 1 epsilon: -1 }", "optimizer.rmsprop.epsilon: got -1, want a finite number above 0"},
      {"adam {}", "optimizer.adam.learning_rate: got 0, want a finite number above 0"},
      {"adam { learning_rate: 1 beta1: -0.5 }", "optimizer.adam.beta1: got -0.5, want a number in [0, 1)"},
      {"adam { learning_rate: 1 beta2: 1 }", "optimizer.adam.beta2: got 1, want a number in [0, 1)"},
      {"adam { learning_rate: 1 epsilon: 0 }", "optimizer.adam.epsilon: got 0, want a finite number above 0"},
      {"adamw { learning_rate: 1 beta2: 2 }", "optimizer.adamw.beta2: got 2, want a number in [0, 1)"},
      {"lamb { learning_rate: 1 epsilon: inf }", "optimizer.lamb.epsilon: got inf, want a finite number above 0"},
      {"ftrl {}", "optimizer.ftrl.learning_rate: got 0, want a finite number above 0"},
      {"ftrl { learning_rate: 1 beta: -1 }", "optimizer.ftrl.beta: got -1, want a finite number of at least 0"},
      {"ftrl { learning_rate: 1 l1: -1 }", "optimizer.ftrl.l1: got -1, want a finite number of at least 0"},
      {"ftrl { learning_rate: 1 l2: inf }", "optimizer.ftrl.l2: got inf, want a finite number of at least 0"},
  };
  for (const Case& c : cases) EXPECT_EQ(Fault(c.config), c.fault) << c.config;
}

TEST(OptimizerConfigTest, RefusesWhatEveryKindHasByName) {
  const Case cases[] = {
      {"weight_decay: -1", "optimizer.weight_decay: got -1, want a finite number of at least 0"},
      {"clip_value: nan", "optimizer.clip_value: got nan, want a finite number of at least 0"},
      {"clip_norm: inf", "optimizer.clip_norm: got inf, want a finite number of at least 0"},
      {"schedule { step { factor: 0.5 } }", "optimizer.schedule.step.every: got 0, want at least 1"},
      {"schedule { step { every: 1 } }", "optimizer.schedule.step.factor: got 0, want a number in (0, 1]"},
      {"schedule { exponential { factor: 1.5 } }",
       "optimizer.schedule.exponential.factor: got 1.5, want a number in (0, 1]"},
      {"schedule { polynomial {} }", "optimizer.schedule.polynomial.total: got 0, want at least 1"},
      {"schedule { polynomial { total: 1 power: 0 } }",
       "optimizer.schedule.polynomial.power: got 0, want a finite number above 0"},
      {"schedule { step { every: 1 factor: 0.5 } total_from_job: true }",
       "optimizer.schedule.total_from_job: got true, want it only with polynomial, cosine or one_cycle"},
      {"schedule { cosine {} }", "optimizer.schedule.cosine.total: got 0, want at least 1"},
      {"schedule { cosine { total: 1 min_rate_ratio: 2 } }",
       "optimizer.schedule.cosine.min_rate_ratio: got 2, want a number in [0, 1]"},
      {"schedule { one_cycle { total: 1 } }", "optimizer.schedule.one_cycle.total: got 1, want at least 2"},
      {"schedule { one_cycle { total: 2 warmup_fraction: 1 } }",
       "optimizer.schedule.one_cycle.warmup_fraction: got 1, want a number in (0, 1)"},
  };
  for (const Case& c : cases) EXPECT_EQ(Fault(std::string("sgd { learning_rate: 1 } ") + c.config), c.fault);
  EXPECT_EQ(Fault("sgd { learning_rate: 1 } schedule { one_cycle { total: 2 } warmup: 5 }"), "");
  EXPECT_EQ(Fault("sgd { learning_rate: 1 } weight_decay: 0.1 clip_value: 1 clip_norm: 1 schedule { constant {} }"),
            "");
}

}  // namespace

}  // namespace ballast
