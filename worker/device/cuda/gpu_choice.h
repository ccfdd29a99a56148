// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ballast {

// A GPU of this machine.
struct Gpu {
  int index = 0;
  std::string name;
  size_t memory_bytes = 0;
  int compute_major = 0;
  int compute_minor = 0;
};

// Those that this build can compute on, at least one. FAILED_PRECONDITION says why there is none and what to do.
absl::StatusOr<std::vector<Gpu>> UsableGpus();

// The one of this index; the first usable one where it is not set. FAILED_PRECONDITION says why it cannot be had.
absl::StatusOr<Gpu> ChooseGpu(std::optional<int> index);

// The error of a GPU that was chosen and could not be opened: with what to do.
absl::Status OpeningFailed(const Gpu& gpu, const absl::Status& status);

}  // namespace ballast
