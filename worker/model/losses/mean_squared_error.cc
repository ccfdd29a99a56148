// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/model/losses/loss.h"

namespace ballast {
namespace {

class MeanSquaredError : public Loss {
 public:
  std::string Describe() const override { return "mean squared error"; }
  LossFunction function() const override { return LossFunction::kMeanSquaredError; }
  bool classifies() const override { return false; }

  absl::Status CheckLabel(float label) const override {
    if (std::isfinite(label)) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("label is ", label, ", want a finite number"));
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<Loss>> MakeMeanSquaredError(const LossSite& site) {
  if (site.outputs != 1) {
    return absl::InvalidArgumentError(absl::StrCat("loss mean_squared_error: the last layer, \"", site.layer,
                                                   "\", has ", site.outputs, " outputs, want 1"));
  }
  return std::make_unique<MeanSquaredError>();
}

}  // namespace ballast
