// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "ballast/v1/job.pb.h"
#include "worker/data/datasets/dataset.h"

namespace ballast {

// Opens a pair of IDX files (Y. LeCun's "THE MNIST DATABASE": two zero bytes, the element's type, the rank, each
// dimension in 4 bytes, then the elements, all big-endian). Plain files are mapped, .gz ones decompressed into memory,
// of which no more is taken than the header claims and the file's size justifies.
absl::StatusOr<std::unique_ptr<Dataset>> OpenIdx(const v1::DataSource& source, const v1::Normalization& normalization,
                                                 const std::string& base_folder);

}  // namespace ballast
