// SPDX-License-Identifier: Apache-2.0
#include "server/weights/optimizers/optimizer.h"

#include "absl/strings/str_cat.h"
#include "common/job/optimizer_config.h"
#include "server/weights/optimizers/adagrad.h"
#include "server/weights/optimizers/adam.h"
#include "server/weights/optimizers/adamw.h"
#include "server/weights/optimizers/ftrl.h"
#include "server/weights/optimizers/lamb.h"
#include "server/weights/optimizers/momentum.h"
#include "server/weights/optimizers/nesterov.h"
#include "server/weights/optimizers/rmsprop.h"
#include "server/weights/optimizers/sgd.h"

namespace ballast {
namespace {

using Maker = std::unique_ptr<Optimizer> (*)(const v1::Optimizer&, InstructionSet);

// All optimizers.
constexpr struct {
  v1::Optimizer::KindCase kind;
  Maker make;
} kOptimizers[] = {
    {v1::Optimizer::kSgd, MakeSgd},         {v1::Optimizer::kMomentum, MakeMomentum},
    {v1::Optimizer::kAdam, MakeAdam},       {v1::Optimizer::kNesterov, MakeNesterov},
    {v1::Optimizer::kAdagrad, MakeAdagrad}, {v1::Optimizer::kRmsprop, MakeRmsProp},
    {v1::Optimizer::kAdamw, MakeAdamW},     {v1::Optimizer::kLamb, MakeLamb},
    {v1::Optimizer::kFtrl, MakeFtrl},
};

}  // namespace

absl::StatusOr<std::unique_ptr<Optimizer>> MakeOptimizer(const v1::Optimizer& config) {
  return MakeOptimizer(config, AvailableInstructionSets().back());
}

absl::StatusOr<std::unique_ptr<Optimizer>> MakeOptimizer(const v1::Optimizer& config, InstructionSet set) {
  if (absl::Status status = ValidateOptimizer(config); !status.ok()) return status;
  for (const auto& entry : kOptimizers) {
    if (entry.kind == config.kind_case()) return entry.make(config, set);
  }
  return absl::InternalError(absl::StrCat("optimizer kind ", config.kind_case(), " has no maker"));
}

}  // namespace ballast
