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

// The GPUs that this build can compute on, at least one. FAILED_PRECONDITION says why there is none and what to do.
absl::StatusOr<std::vector<Gpu>> UsableGpus();

// The GPU with this index, or the first usable one if not set. FAILED_PRECONDITION says why it is not usable.
absl::StatusOr<Gpu> ChooseGpu(std::optional<int> index);

// The error for a chosen GPU that could not be opened, with advice on what to do.
absl::Status OpeningFailed(const Gpu& gpu, const absl::Status& status);

}  // namespace ballast
