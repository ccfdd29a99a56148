// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "worker/data/datasets/dataset.h"
#include "worker/data/datasets/example_values.h"
#include "worker/data/files/text_rows.h"

namespace ballast {
namespace {

// Layout of a row.
struct RowFormat {
  uint64_t features = 0;
  uint64_t first_index = 1;
  // Rows may begin with the first "index:value".
  bool labels_optional = false;
};

const char* SkipBlanks(const char* at, const char* end) {
  while (at != end && absl::ascii_isspace(*at)) ++at;
  return at;
}

// Returns the word that begins at `at`, for an error message.
absl::string_view Word(const char* at, const char* end) {
  return {at, size_t(std::find_if(at, end, absl::ascii_isspace) - at)};
}

absl::string_view WithoutComment(absl::string_view line) {
  return absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
}

// Calls visit(position from 0, value) for each "index:value" and returns the label, NaN if there is none.
template <typename Visit>
absl::StatusOr<float> ParseRow(absl::string_view line, const RowFormat& format, Visit visit) {
  line = WithoutComment(line);
  const char* at = line.data();
  const char* const end = at + line.size();
  TextNumber label = ParseNumber(at, end);
  if (format.labels_optional && label.end != end && *label.end == ':') {
    label = {.end = at};
  } else if (std::isnan(label.value) || (label.end != end && !absl::ascii_isspace(*label.end))) {
    return NotANumber("the label", Word(at, end));
  }
  uint64_t next = format.first_index;
  for (at = SkipBlanks(label.end, end); at != end; at = SkipBlanks(at, end)) {
    const absl::string_view word = Word(at, end);
    uint64_t index = 0;
    const std::from_chars_result parsed = std::from_chars(at, end, index);
    if (parsed.ec != std::errc() || parsed.ptr == end || *parsed.ptr != ':') {
      return absl::InvalidArgumentError(
          absl::StrCat("got \"", absl::CEscape(word.substr(0, 40)), "\", want index:value"));
    }
    if (index < format.first_index || index - format.first_index >= format.features) {
      return absl::InvalidArgumentError(absl::StrCat("index ", index, " is out of range, want ", format.first_index,
                                                     " to ", format.features - 1 + format.first_index));
    }
    if (index < next) {
      return absl::InvalidArgumentError(
          absl::StrCat("index ", index, " comes after ", next - 1, ", want ascending indices"));
    }
    next = index + 1;
    const TextNumber value = ParseNumber(parsed.ptr + 1, end);
    if (std::isnan(value.value) || (value.end != end && !absl::ascii_isspace(*value.end))) {
      return NotANumber(absl::StrCat("the value of index ", index), Word(parsed.ptr + 1, end));
    }
    at = value.end;
    visit(index - format.first_index, value.value);
  }
  return static_cast<float>(label.value);
}

class LibsvmDataset : public Dataset {
 public:
  LibsvmDataset(TextRows rows, RowFormat format, const Normalizer& normalizer, bool has_labels,
                std::vector<PlacedLabel> extremes)
      : rows_(std::move(rows)),
        format_(format),
        normalizer_(normalizer),
        has_labels_(has_labels),
        extremes_(std::move(extremes)) {}

  uint64_t size() const override { return rows_.size(); }
  uint64_t features() const override { return format_.features; }
  bool has_labels() const override { return has_labels_; }
  std::vector<PlacedLabel> ExtremeLabels() const override { return extremes_; }

  absl::Status Read(absl::Span<const uint64_t> indices, absl::Span<float> features, absl::Span<float> labels,
                    IdBags* ids) const override {
    if (absl::Status status = CheckRead(*this, indices, features, labels); !status.ok()) return status;
    ClearBags(ids);
    std::fill(features.begin(), features.end(), normalizer_(0));
    for (size_t i = 0; i < indices.size(); ++i) {
      float* const row = features.data() + i * format_.features;
      absl::StatusOr<float> label =
          ParseRow(rows_.Row(indices[i]), format_, [&](uint64_t at, double value) { row[at] = normalizer_(value); });
      if (!label.ok()) {
        return absl::DataLossError(absl::StrCat(
            "example ", indices[i], " has changed in the file since it was opened: ", label.status().message()));
      }
      labels[i] = *label;
    }
    return absl::OkStatus();
  }

 private:
  const TextRows rows_;
  const RowFormat format_;
  const Normalizer normalizer_;
  const bool has_labels_;
  const std::vector<PlacedLabel> extremes_;
};

}  // namespace

// Opens a file in LIBSVM's format (Chang and Lin, 2011): "label index:value ..." with ascending indices and comments
// after "#". Checks every line once and skips blank lines.
absl::StatusOr<std::unique_ptr<Dataset>> OpenLibsvm(const v1::DataSource& source, const DatasetOptions& options) {
  const v1::Libsvm& libsvm = source.libsvm();
  if (libsvm.features() < 1) {
    return absl::InvalidArgumentError(absl::StrCat("libsvm.features is ", libsvm.features(), ", want at least 1"));
  }
  const RowFormat format = {.features = static_cast<uint64_t>(libsvm.features()),
                            .first_index = libsvm.zero_based() ? 0u : 1u,
                            .labels_optional = options.labels_optional};
  LabelExtremes extremes;
  bool has_labels = true;
  const auto check = [&](absl::string_view line, uint64_t number) -> absl::StatusOr<bool> {
    if (WithoutComment(line).empty()) return false;
    absl::StatusOr<float> label = ParseRow(line, format, [](uint64_t, double) {});
    if (!label.ok()) return label.status();
    if (std::isnan(*label)) {
      has_labels = false;
    } else {
      extremes.Add(*label, number);
    }
    return true;
  };
  const std::string path = DataPath(options.base_folder, libsvm.path());
  absl::StatusOr<TextRows> rows = OpenRows(path, options, check);
  if (!rows.ok()) return rows.status();
  const auto where = [&](uint64_t line) { return absl::StrCat(path, ":", line); };
  return std::make_unique<LibsvmDataset>(*std::move(rows), format, Normalizer(options.normalization), has_labels,
                                         extremes.Describe(where));
}

}  // namespace ballast
