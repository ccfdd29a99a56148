// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "ballast/v1/job.pb.h"
#include "worker/data/datasets/dataset.h"

namespace ballast {

// Opens a pair of IDX files (Y. LeCun, "THE MNIST DATABASE": two zero bytes, the element type, the rank, each dimension
// in 4 bytes, then the elements, all big-endian). Maps plain files. Decompresses .gz files into memory, limited by the
// size that the header gives and by the most that a file of that size can contain.
absl::StatusOr<std::unique_ptr<Dataset>> OpenIdx(const v1::DataSource& source, const v1::Normalization& normalization,
                                                 const std::string& base_folder);

}  // namespace ballast
