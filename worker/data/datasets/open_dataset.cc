// SPDX-License-Identifier: Apache-2.0
#include "worker/data/datasets/open_dataset.h"

#include "worker/data/datasets/csv_dataset.h"
#include "worker/data/datasets/idx_dataset.h"
#include "worker/data/datasets/libsvm_dataset.h"

namespace ballast {
namespace {

struct Reader {
  v1::DataSource::FormatCase format;
  absl::StatusOr<std::unique_ptr<Dataset>> (*open)(const v1::DataSource&, const v1::Normalization&, const std::string&);
};

// Add a line for each new format.
constexpr Reader kReaders[] = {
    {v1::DataSource::kIdx, OpenIdx},
    {v1::DataSource::kCsv, OpenCsv},
    {v1::DataSource::kLibsvm, OpenLibsvm},
};

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> OpenDataset(const v1::DataSource& source,
                                                     const v1::Normalization& normalization,
                                                     const std::string& base_folder) {
  for (const Reader& reader : kReaders) {
    if (reader.format == source.format_case()) {
      return reader.open(source, normalization, base_folder);
    }
  }
  return absl::InvalidArgumentError("data source is not set, want idx, csv or libsvm");
}

}  // namespace ballast
