// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"
#include "worker/device/device.h"

namespace ballast {

// What a model minimises: which of the device's functions, and which labels fit it.
// Thread safety: immutable.
class Loss {
 public:
  virtual ~Loss() = default;

  // For people.
  virtual std::string Describe() const = 0;
  virtual LossFunction function() const = 0;
  // Whether labels are classes, so that there is a count of right answers.
  virtual bool classifies() const = 0;
  // INVALID_ARGUMENT ("label is …, want …") for a label that the loss cannot take.
  virtual absl::Status CheckLabel(float label) const = 0;
};

}  // namespace ballast
