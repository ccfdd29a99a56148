// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/model/losses/loss.h"

namespace ballast {
namespace {

class SoftmaxCrossEntropy : public Loss {
 public:
  explicit SoftmaxCrossEntropy(const LossSite& site) : site_(site) {}

  std::string Describe() const override { return "softmax cross-entropy"; }
  LossFunction function() const override { return LossFunction::kSoftmaxCrossEntropy; }
  bool classifies() const override { return true; }

  absl::Status CheckLabel(float label) const override {
    if (label >= 0.0f && label < site_.outputs && label == std::floor(label)) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("label is ", label, ", want a whole number from 0 to ",
                                                   site_.outputs - 1, ", for layer \"", site_.layer, "\" has ",
                                                   site_.outputs, " outputs"));
  }

 private:
  const LossSite site_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Loss>> MakeSoftmaxCrossEntropy(const LossSite& site) {
  if (site.outputs < 2) {
    return absl::InvalidArgumentError(absl::StrCat("loss softmax_cross_entropy: the last layer, \"", site.layer,
                                                   "\", has ", site.outputs,
                                                   " output, want one for each of at least 2 classes"));
  }
  return std::make_unique<SoftmaxCrossEntropy>(site);
}

}  // namespace ballast
