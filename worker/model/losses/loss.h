// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"
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

}  // namespace ballast
