// SPDX-License-Identifier: Apache-2.0
#include "server/weights/optimizers/optimizer.h"

#include "absl/strings/str_cat.h"
#include "common/job/job_config.h"
#include "common/job/limits.h"

namespace ballast {

// Each is defined in the file of its name. Its message of the configuration is set and valid,
// and has its defaults.
using MakeKind = std::unique_ptr<Optimizer>(const v1::Optimizer&);
MakeKind MakeSgd, MakeMomentum, MakeNesterov, MakeAdam, MakeAdamW, MakeLamb, MakeAdagrad, MakeRmsProp, MakeFtrl,
    MakeLion;

namespace {

constexpr struct {
  v1::Optimizer::KindCase kind;
  MakeKind* make;
} kOptimizers[] = {
    {v1::Optimizer::kSgd, MakeSgd},         {v1::Optimizer::kMomentum, MakeMomentum},
    {v1::Optimizer::kAdam, MakeAdam},       {v1::Optimizer::kNesterov, MakeNesterov},
    {v1::Optimizer::kAdagrad, MakeAdagrad}, {v1::Optimizer::kRmsprop, MakeRmsProp},
    {v1::Optimizer::kAdamw, MakeAdamW},     {v1::Optimizer::kLamb, MakeLamb},
    {v1::Optimizer::kFtrl, MakeFtrl},       {v1::Optimizer::kLion, MakeLion},
};

}  // namespace

absl::StatusOr<std::unique_ptr<Optimizer>> MakeOptimizer(const v1::Optimizer& config) {
  if (absl::Status status = ValidateOptimizer(config); !status.ok()) return status;
  v1::Optimizer complete = config;
  FillNumbers(complete);
  for (const auto& entry : kOptimizers) {
    if (entry.kind == complete.kind_case()) return entry.make(complete);
  }
  return absl::InternalError(absl::StrCat("optimizer kind ", config.kind_case(), " has no maker"));
}

}  // namespace ballast
