// SPDX-License-Identifier: Apache-2.0
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/model/losses/loss.h"

namespace ballast {
namespace {

class SigmoidCrossEntropy : public Loss {
 public:
  std::string Describe() const override { return "sigmoid cross-entropy"; }
  LossFunction function() const override { return LossFunction::kSigmoidCrossEntropy; }
  bool classifies() const override { return true; }

  absl::Status CheckLabel(float label) const override {
    if (label == 0 || label == 1) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("label is ", label, ", want 0 or 1"));
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<Loss>> MakeSigmoidCrossEntropy(const LossSite& site) {
  if (site.outputs != 1) {
    return absl::InvalidArgumentError(absl::StrCat("loss sigmoid_cross_entropy: the last layer, \"", site.layer,
                                                   "\", has ", site.outputs, " outputs, want 1"));
  }
  return std::make_unique<SigmoidCrossEntropy>();
}

}  // namespace ballast
