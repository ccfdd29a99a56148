// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "ballast/v1/job.pb.h"
#include "worker/data/datasets/dataset.h"

namespace ballast {

// Opens a CSV file of unquoted numbers. Checks every line once and skips blank lines.
absl::StatusOr<std::unique_ptr<Dataset>> OpenCsv(const v1::DataSource& source, const v1::Normalization& normalization,
                                                 const std::string& base_folder);

}  // namespace ballast
