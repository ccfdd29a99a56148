// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ballast/v1/job.pb.h"
#include "worker/device/device.h"

namespace ballast {

// The function that a model minimizes: it names the device's loss function and checks labels. Thread safety: immutable.
class Loss {
 public:
  virtual ~Loss() = default;

  // Returns text for logs.
  virtual std::string Describe() const = 0;
  virtual LossFunction function() const = 0;
  // Returns whether labels are classes, so that correct predictions can be counted.
  virtual bool classifies() const = 0;
  // INVALID_ARGUMENT ("label is …, want …") for a label that the loss does not accept.
  virtual absl::Status CheckLabel(float label) const = 0;
};

// The last layer of a model, whose output is the input of the loss.
struct LossSite {
  std::string layer;
  int64_t outputs = 0;
};

// INVALID_ARGUMENT if the kind is not set, or does not fit the last layer, which the message names.
absl::StatusOr<std::unique_ptr<Loss>> MakeLoss(const v1::Loss& config, const LossSite& site);

}  // namespace ballast
