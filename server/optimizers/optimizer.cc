// SPDX-License-Identifier: Apache-2.0
#include "server/optimizers/optimizer.h"

#include "absl/strings/str_cat.h"
#include "common/optimizer_config.h"
#include "server/optimizers/adam.h"
#include "server/optimizers/momentum.h"
#include "server/optimizers/sgd.h"

namespace ballast {
namespace {

using Maker = std::unique_ptr<Optimizer> (*)(const v1::Optimizer&);

// Every optimizer there is: a line each.
constexpr struct {
  v1::Optimizer::KindCase kind;
  Maker make;
} kOptimizers[] = {
    {v1::Optimizer::kSgd, MakeSgd},
    {v1::Optimizer::kMomentum, MakeMomentum},
    {v1::Optimizer::kAdam, MakeAdam},
};

}  // namespace

absl::StatusOr<std::unique_ptr<Optimizer>> MakeOptimizer(const v1::Optimizer& config) {
  if (absl::Status status = ValidateOptimizer(config); !status.ok()) return status;
  for (const auto& entry : kOptimizers) {
    if (entry.kind == config.kind_case()) return entry.make(config);
  }
  return absl::InternalError(absl::StrCat("optimizer kind ", config.kind_case(), " has no maker"));
}

}  // namespace ballast
