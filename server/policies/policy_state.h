// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "ballast/internal/v1/storage.pb.h"
#include "server/memory/value_buffer.h"

namespace ballast {

// The state of a slice's policy at one moment. Shares its gradients with the policy, which does not change them.
struct PolicyState {
  // A gradient that waits for others of its step; has no values if it has no examples.
  struct Held {
    uint32_t worker = 0;
    uint32_t examples = 0;
    ValueBuffer values;
  };

  // Everything except the gradients.
  internal::v1::PolicyState fields;
  // Sum of the gradients added so far; empty if there are none.
  ValueBuffer sum;
  std::vector<Held> held;
};

}  // namespace ballast
