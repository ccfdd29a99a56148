// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "ballast/v1/job.pb.h"
#include "worker/data/datasets/dataset.h"

namespace ballast {

// Opens a data set of any format. Relative paths are relative to `base_folder` if it is not empty. All errors in a file
// surface here, not in Read; the message names the file and the byte or line.
absl::StatusOr<std::unique_ptr<Dataset>> OpenDataset(const v1::DataSource& source,
                                                     const v1::Normalization& normalization,
                                                     const std::string& base_folder);

}  // namespace ballast
