// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "ballast/v1/job.pb.h"
#include "worker/data/datasets/dataset.h"
#include "worker/data/datasets/stream_reader.h"

namespace ballast {

// The data sets of a job. `test` has the features, fields of ids and classes of `train`.
struct JobData {
  std::unique_ptr<Dataset> train;
  // Null if the job has neither test data nor a test share.
  std::unique_ptr<Dataset> test;
  // Set if the job has a stream, whose prototype is then `train`.
  std::unique_ptr<StreamReader> stream;
};

// Opens the data of a validated job; `seed` is Job.seed. Relative paths are relative to `base_folder` if it is not
// empty. Every call gives the same examples in the same order, on every machine. Same errors as OpenDataset.
absl::StatusOr<JobData> OpenJobData(const v1::Data& data, uint64_t seed, const std::string& base_folder);

}  // namespace ballast
