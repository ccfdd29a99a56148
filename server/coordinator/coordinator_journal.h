// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace ballast {

// Storage for a coordinator's state that outlives its process: each state replaces the previous one. Does not know
// what a state contains. Thread safety: none needed; the coordinator saves one state at a time.
class CoordinatorJournal {
 public:
  virtual ~CoordinatorJournal() = default;

  // After OK, a restarted coordinator begins from this state; with `sync`, even after the machine has crashed. After
  // an error it begins from this state or an earlier one.
  virtual absl::Status Save(absl::string_view state, bool sync) = 0;

  // Syncs states that were saved without `sync`, when it is time to; called after responses were sent. If that fails,
  // the next Save syncs them or fails.
  virtual void Settle() = 0;
};

}  // namespace ballast
