// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "ballast/internal/v1/storage.pb.h"
#include "server/memory/value_buffer.h"

namespace ballast {

// What a slice's policy remembers, at one moment. Its gradients are shared with the policy, which leaves them as they
// are.
struct PolicyState {
  // A gradient that waits for others of its step; of none examples it has no values.
  struct Held {
    uint32_t worker = 0;
    uint32_t examples = 0;
    ValueBuffer values;
  };

  // Without the gradients.
  internal::v1::PolicyState fields;
  // Of those gradients that were added up already; empty if there are none.
  ValueBuffer sum;
  std::vector<Held> held;
};

}  // namespace ballast
