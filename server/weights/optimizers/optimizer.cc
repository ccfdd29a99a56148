// SPDX-License-Identifier: Apache-2.0
#include "server/weights/optimizers/optimizer.h"

#include "absl/strings/str_cat.h"
#include "common/job/job_config.h"
#include "common/job/limits.h"
#include "server/weights/optimizers/optimizer_kind.h"
#include "server/weights/optimizers/row_optimizer.h"

namespace ballast {

// Each is defined in the file of its name.
OptimizerKind SgdKind(), MomentumKind(), NesterovKind(), AdamKind(), AdamWKind(), LambKind(), AdagradKind(),
    RmsPropKind(), FtrlKind(), LionKind(), RowWiseAdagradKind(), RowWiseAdamKind(), GroupFtrlKind();

namespace {

constexpr struct {
  v1::Optimizer::KindCase kind;
  OptimizerKind (*makers)();
} kOptimizers[] = {
    {v1::Optimizer::kSgd, SgdKind},
    {v1::Optimizer::kMomentum, MomentumKind},
    {v1::Optimizer::kAdam, AdamKind},
    {v1::Optimizer::kNesterov, NesterovKind},
    {v1::Optimizer::kAdagrad, AdagradKind},
    {v1::Optimizer::kRmsprop, RmsPropKind},
    {v1::Optimizer::kAdamw, AdamWKind},
    {v1::Optimizer::kLamb, LambKind},
    {v1::Optimizer::kFtrl, FtrlKind},
    {v1::Optimizer::kLion, LionKind},
    {v1::Optimizer::kRowWiseAdagrad, RowWiseAdagradKind},
    {v1::Optimizer::kRowWiseAdam, RowWiseAdamKind},
    {v1::Optimizer::kGroupFtrl, GroupFtrlKind},
};

// Checks the configuration and makes its kind with one of the kind's makers.
template <typename T>
absl::StatusOr<std::unique_ptr<T>> Make(const v1::Optimizer& config, v1::ParameterKind parameter,
                                        std::unique_ptr<T> (*OptimizerKind::*maker)(const v1::Optimizer&)) {
  if (absl::Status status = ValidateOptimizer(config, parameter); !status.ok()) return status;
  v1::Optimizer complete = config;
  FillNumbers(complete);
  for (const auto& entry : kOptimizers) {
    if (entry.kind == complete.kind_case()) return (entry.makers().*maker)(complete);
  }
  return absl::InternalError(absl::StrCat("optimizer kind ", config.kind_case(), " has no maker"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Optimizer>> MakeOptimizer(const v1::Optimizer& config) {
  return Make(config, v1::PARAMETER_KIND_TENSOR, &OptimizerKind::make);
}

absl::StatusOr<std::unique_ptr<RowOptimizer>> MakeRowOptimizer(const v1::Optimizer& config) {
  return Make(config, v1::PARAMETER_KIND_TABLE, &OptimizerKind::make_for_rows);
}

}  // namespace ballast
