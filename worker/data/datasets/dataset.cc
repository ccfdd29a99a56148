// SPDX-License-Identifier: Apache-2.0
#include "worker/data/datasets/dataset.h"

#include "absl/strings/str_cat.h"

namespace ballast {

absl::Status CheckRead(const Dataset& dataset, absl::Span<const uint64_t> indices, absl::Span<const float> features,
                       absl::Span<const float> labels) {
  if (labels.size() != indices.size()) {
    return absl::InvalidArgumentError(absl::StrCat("span has ", labels.size(), " labels, want ", indices.size()));
  }
  uint64_t elements = 0;
  if (__builtin_mul_overflow(indices.size(), dataset.features(), &elements) || features.size() != elements) {
    return absl::InvalidArgumentError(
        absl::StrCat("span has ", features.size(), " features, want ", indices.size(), " x ", dataset.features()));
  }
  for (const uint64_t index : indices) {
    if (index >= dataset.size()) {
      return absl::OutOfRangeError(absl::StrCat("example has index ", index, ", want less than ", dataset.size()));
    }
  }
  return absl::OkStatus();
}

// Same as OpenDataset, for one format. Each is defined in the file of its name.
using OpenFormat = absl::StatusOr<std::unique_ptr<Dataset>>(const v1::DataSource& source,
                                                            const DatasetOptions& options);
OpenFormat OpenCriteo, OpenCsv, OpenIdx, OpenLibffm, OpenLibsvm, OpenPlantedClicks;

namespace {

constexpr struct {
  v1::DataSource::FormatCase format;
  OpenFormat* open;
} kReaders[] = {
    {v1::DataSource::kIdx, OpenIdx},       {v1::DataSource::kCsv, OpenCsv},
    {v1::DataSource::kLibsvm, OpenLibsvm}, {v1::DataSource::kCriteo, OpenCriteo},
    {v1::DataSource::kLibffm, OpenLibffm}, {v1::DataSource::kPlantedClicks, OpenPlantedClicks},
};

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> OpenDataset(const v1::DataSource& source, const DatasetOptions& options) {
  for (const auto& reader : kReaders) {
    if (reader.format == source.format_case()) return reader.open(source, options);
  }
  return absl::InvalidArgumentError("data source is not set, want idx, csv, libsvm, criteo, libffm or planted_clicks");
}

}  // namespace ballast
