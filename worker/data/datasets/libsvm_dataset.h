// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "ballast/v1/job.pb.h"
#include "worker/data/datasets/dataset.h"

namespace ballast {

// Opens a file in LIBSVM's format (Chang and Lin, 2011): "label index:value ..." with ascending indices and comments
// after "#". Checks every line once and skips blank lines.
absl::StatusOr<std::unique_ptr<Dataset>> OpenLibsvm(const v1::DataSource& source,
                                                    const v1::Normalization& normalization,
                                                    const std::string& base_folder);

}  // namespace ballast
