// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/run/safetensors.h"
#include "worker/model/trainable_model.h"

namespace ballast {

// Tensors of a file that LoadTensors has put into a model.
struct LoadedNames {
  // Indices of the loaded parameters, ascending.
  std::vector<size_t> parameters;
  // Number of loaded statistics.
  size_t statistics = 0;
  // Names of the model's tensors that the file lacks, and of the file's tensors that the model lacks.
  std::vector<std::string> missing;
  std::vector<std::string> unused;
};

// Sets the parameters and statistics of `model` that the file has under the same name. INVALID_ARGUMENT names a tensor
// of another shape or with a value that is not finite; the model may then have been changed.
absl::StatusOr<LoadedNames> LoadTensors(const Safetensors& file, TrainableModel& model);

// The weights with which a job starts, if it has init_from.
struct InitialWeights {
  // Indices of the trained parameters that the model has from the file; the servers get their values from worker 0.
  std::vector<size_t> provided;
  // Counts of the tensors that were loaded, initialized as usual and not used, for people.
  std::string report;
  // Depends on the names and values of the file's tensors.
  uint64_t checksum = 0;
};

// Loads the file at `path` into the model; its parameters without a group are frozen. INVALID_ARGUMENT if a tensor does
// not fit, no tensor does, or a frozen parameter is missing.
absl::StatusOr<InitialWeights> LoadInitialWeights(const std::string& path, TrainableModel& model);

}  // namespace ballast
