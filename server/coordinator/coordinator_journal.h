// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace ballast {

// Where a coordinator's state outlives its process: each state takes the place of the one before. Knows nothing of what
// is in it. Thread safety: none needed; the coordinator saves one state at a time.
class CoordinatorJournal {
 public:
  virtual ~CoordinatorJournal() = default;

  // Once OK, a coordinator that is started later goes on from this state, with `sync` even where the machine died
  // meanwhile. Any other answer leaves this or an earlier one.
  virtual absl::Status Save(absl::string_view state, bool sync) = 0;

  // Lets what was saved without `sync` outlive the machine, too, once it is time to; called after answers were given.
  // Where that fails, the next Save does so or fails.
  virtual void Settle() = 0;
};

}  // namespace ballast
