// SPDX-License-Identifier: Apache-2.0
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/job/kind_names.h"
#include "worker/model/losses/loss.h"

namespace ballast {

// Each is defined in the file of its name.
using MakeKind = absl::StatusOr<std::unique_ptr<Loss>>(const LossSite& site);
MakeKind MakeMeanSquaredError, MakeSigmoidCrossEntropy, MakeSoftmaxCrossEntropy;

namespace {

constexpr struct {
  v1::Loss::KindCase kind;
  MakeKind* make;
} kLosses[] = {
    {v1::Loss::kMeanSquaredError, MakeMeanSquaredError},
    {v1::Loss::kSigmoidCrossEntropy, MakeSigmoidCrossEntropy},
    {v1::Loss::kSoftmaxCrossEntropy, MakeSoftmaxCrossEntropy},
};

}  // namespace

absl::StatusOr<std::unique_ptr<Loss>> MakeLoss(const v1::Loss& config, const LossSite& site) {
  for (const auto& entry : kLosses) {
    if (entry.kind == config.kind_case()) return entry.make(site);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("model: its loss is not set, want ", KindPhrase(*v1::Loss::descriptor())));
}

}  // namespace ballast
