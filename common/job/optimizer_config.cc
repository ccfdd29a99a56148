// SPDX-License-Identifier: Apache-2.0
#include "common/job/optimizer_config.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace ballast {
namespace {

// Keeps the first fault. Every comparison is written so that NaN fails it.
class Checker {
 public:
  explicit Checker(std::string field) : field_(std::move(field)) {}

  void AboveZero(absl::string_view name, double got) {
    Check(std::isfinite(got) && got > 0, name, got, "a finite number above 0");
  }
  void AtLeastZero(absl::string_view name, double got) {
    Check(std::isfinite(got) && got >= 0, name, got, "a finite number, at least 0");
  }
  // Decay of a running average: with 1 it would never include anything new.
  void Decay(absl::string_view name, double got) { Check(got >= 0 && got < 1, name, got, "a number in [0, 1)"); }
  void Factor(absl::string_view name, double got) { Check(got > 0 && got <= 1, name, got, "a number in (0, 1]"); }
  void Inner(absl::string_view name, double got) { Check(got > 0 && got < 1, name, got, "a number in (0, 1)"); }
  void Share(absl::string_view name, double got) { Check(got >= 0 && got <= 1, name, got, "a number in [0, 1]"); }
  void AtLeast(absl::string_view name, uint64_t got, uint64_t least) {
    Check(got >= least, name, got, absl::StrCat("at least ", least));
  }

  absl::Status status() const { return status_; }

 private:
  template <typename Number>
  void Check(bool good, absl::string_view name, Number got, absl::string_view want) {
    if (good) return;
    status_.Update(absl::InvalidArgumentError(absl::StrCat(field_, ".", name, ": got ", got, ", want ", want)));
  }

  const std::string field_;
  absl::Status status_;
};

template <typename Moments>
absl::Status ValidateMoments(absl::string_view name, const Moments& config) {
  Checker checker(absl::StrCat("optimizer.", name));
  checker.AboveZero("learning_rate", config.learning_rate());
  if (config.has_beta1()) checker.Decay("beta1", config.beta1());
  if (config.has_beta2()) checker.Decay("beta2", config.beta2());
  if (config.has_epsilon()) checker.AboveZero("epsilon", config.epsilon());
  return checker.status();
}

absl::Status ValidateFtrl(const v1::Optimizer::Ftrl& ftrl) {
  Checker checker("optimizer.ftrl");
  checker.AboveZero("learning_rate", ftrl.learning_rate());
  if (ftrl.has_beta()) checker.AtLeastZero("beta", ftrl.beta());
  checker.AtLeastZero("l1", ftrl.l1());
  checker.AtLeastZero("l2", ftrl.l2());
  return checker.status();
}

absl::Status ValidateKind(const v1::Optimizer& optimizer) {
  switch (optimizer.kind_case()) {
    case v1::Optimizer::kSgd: {
      Checker checker("optimizer.sgd");
      checker.AboveZero("learning_rate", optimizer.sgd().learning_rate());
      return checker.status();
    }
    case v1::Optimizer::kMomentum: {
      Checker checker("optimizer.momentum");
      checker.AboveZero("learning_rate", optimizer.momentum().learning_rate());
      checker.Decay("momentum", optimizer.momentum().momentum());
      return checker.status();
    }
    case v1::Optimizer::kNesterov: {
      Checker checker("optimizer.nesterov");
      checker.AboveZero("learning_rate", optimizer.nesterov().learning_rate());
      checker.Inner("momentum", optimizer.nesterov().momentum());
      return checker.status();
    }
    case v1::Optimizer::kAdagrad: {
      Checker checker("optimizer.adagrad");
      checker.AboveZero("learning_rate", optimizer.adagrad().learning_rate());
      if (optimizer.adagrad().has_epsilon()) checker.AboveZero("epsilon", optimizer.adagrad().epsilon());
      return checker.status();
    }
    case v1::Optimizer::kRmsprop: {
      Checker checker("optimizer.rmsprop");
      checker.AboveZero("learning_rate", optimizer.rmsprop().learning_rate());
      if (optimizer.rmsprop().has_alpha()) checker.Decay("alpha", optimizer.rmsprop().alpha());
      if (optimizer.rmsprop().has_epsilon()) checker.AboveZero("epsilon", optimizer.rmsprop().epsilon());
      return checker.status();
    }
    case v1::Optimizer::kAdam:
      return ValidateMoments("adam", optimizer.adam());
    case v1::Optimizer::kAdamw:
      return ValidateMoments("adamw", optimizer.adamw());
    case v1::Optimizer::kLamb:
      return ValidateMoments("lamb", optimizer.lamb());
    case v1::Optimizer::kFtrl:
      return ValidateFtrl(optimizer.ftrl());
    case v1::Optimizer::KIND_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError(absl::StrCat("optimizer: got none, want ", OptimizerNames()));
}

absl::Status ValidateSchedule(const v1::Schedule& schedule) {
  const bool has_total = schedule.has_polynomial() || schedule.has_cosine() || schedule.has_one_cycle();
  if (schedule.total_from_job() && !has_total) {
    return absl::InvalidArgumentError(
        "optimizer.schedule.total_from_job: got true, want it only with polynomial, cosine or one_cycle");
  }
  switch (schedule.kind_case()) {
    case v1::Schedule::kStep: {
      Checker checker("optimizer.schedule.step");
      checker.AtLeast("every", schedule.step().every(), 1);
      checker.Factor("factor", schedule.step().factor());
      return checker.status();
    }
    case v1::Schedule::kExponential: {
      Checker checker("optimizer.schedule.exponential");
      checker.Factor("factor", schedule.exponential().factor());
      return checker.status();
    }
    case v1::Schedule::kPolynomial: {
      Checker checker("optimizer.schedule.polynomial");
      checker.AtLeast("total", schedule.polynomial().total(), 1);
      if (schedule.polynomial().has_power()) checker.AboveZero("power", schedule.polynomial().power());
      return checker.status();
    }
    case v1::Schedule::kCosine: {
      Checker checker("optimizer.schedule.cosine");
      checker.AtLeast("total", schedule.cosine().total(), 1);
      checker.Share("min_rate_ratio", schedule.cosine().min_rate_ratio());
      return checker.status();
    }
    case v1::Schedule::kOneCycle: {
      Checker checker("optimizer.schedule.one_cycle");
      checker.AtLeast("total", schedule.one_cycle().total(), 2);
      if (schedule.one_cycle().has_warmup_fraction())
        checker.Inner("warmup_fraction", schedule.one_cycle().warmup_fraction());
      return checker.status();
    }
    case v1::Schedule::kConstant:
    case v1::Schedule::KIND_NOT_SET:
      break;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateOptimizer(const v1::Optimizer& optimizer) {
  if (absl::Status status = ValidateKind(optimizer); !status.ok()) return status;
  Checker checker("optimizer");
  checker.AtLeastZero("weight_decay", optimizer.weight_decay());
  checker.AtLeastZero("clip_value", optimizer.clip_value());
  checker.AtLeastZero("clip_norm", optimizer.clip_norm());
  if (!checker.status().ok()) return checker.status();
  return ValidateSchedule(optimizer.schedule());
}

std::string OptimizerNames() {
  const google::protobuf::OneofDescriptor& kinds = *v1::Optimizer::descriptor()->FindOneofByName("kind");
  std::string names;
  for (int i = 0; i < kinds.field_count(); ++i) {
    absl::StrAppend(&names, i == 0 ? "" : i + 1 < kinds.field_count() ? ", " : " or ", kinds.field(i)->name());
  }
  return names;
}

}  // namespace ballast
