// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "worker/data/datasets/dataset.h"
#include "worker/data/datasets/example_values.h"
#include "worker/data/datasets/row_ids.h"
#include "worker/data/files/text_rows.h"

namespace ballast {
namespace {

// Layout of a row.
struct RowFormat {
  uint64_t fields = 0;
  uint64_t first_field = 0;
  // Rows may begin with the first "field:index:value".
  bool labels_optional = false;
};

const char* SkipBlanks(const char* at, const char* end) {
  while (at != end && absl::ascii_isspace(*at)) ++at;
  return at;
}

absl::Status Refuse(absl::string_view word, absl::string_view fault) {
  return absl::InvalidArgumentError(absl::StrCat("\"", absl::CEscape(word.substr(0, 40)), "\": ", fault));
}

// A "field:index:value" whose value is 1.
struct FieldIndex {
  // Counts from 0.
  uint64_t field = 0;
  uint64_t index = 0;
};

absl::StatusOr<FieldIndex> ParseWord(absl::string_view word, const RowFormat& format) {
  const char* const end = word.data() + word.size();
  uint64_t field = 0, index = 0;
  const std::from_chars_result of_field = std::from_chars(word.data(), end, field);
  const bool field_is_number = of_field.ec != std::errc::invalid_argument && of_field.ptr != end;
  if (!field_is_number || *of_field.ptr != ':') return Refuse(word, "want field:index:value");
  const std::from_chars_result of_index = std::from_chars(of_field.ptr + 1, end, index);
  const bool index_is_number = of_index.ec != std::errc::invalid_argument && of_index.ptr != end;
  if (!index_is_number || *of_index.ptr != ':') return Refuse(word, "want field:index:value");
  if (of_field.ec != std::errc() || field < format.first_field || field - format.first_field >= format.fields) {
    return Refuse(word, absl::StrCat("field is out of range, want ", format.first_field, " to ",
                                     format.fields - 1 + format.first_field));
  }
  if (of_index.ec != std::errc()) return Refuse(word, "index has more than 64 bits");
  const TextNumber value = ParseNumber(of_index.ptr + 1, end);
  if (value.value != 1 || value.end != end) {
    const absl::string_view text(of_index.ptr + 1, end - of_index.ptr - 1);
    return Refuse(word, absl::StrCat("value is \"", absl::CEscape(text.substr(0, 40)), "\", want 1"));
  }
  return FieldIndex{field - format.first_field, index};
}

// Calls visit(FieldIndex) for each word and returns the label, NaN if there is none.
template <typename Visit>
absl::StatusOr<float> ParseRow(absl::string_view line, const RowFormat& format, Visit visit) {
  const char* const end = line.data() + line.size();
  const char* at = SkipBlanks(line.data(), end);
  TextNumber label = ParseNumber(at, end);
  if (format.labels_optional && label.end != end && *label.end == ':') {
    label = {.end = at};
  } else if (std::isnan(label.value) || (label.end != end && !absl::ascii_isspace(*label.end))) {
    return NotANumber("the label", {at, size_t(std::find_if(at, end, absl::ascii_isspace) - at)});
  }
  for (at = SkipBlanks(label.end, end); at != end; at = SkipBlanks(at, end)) {
    const char* const word_end = std::find_if(at, end, absl::ascii_isspace);
    const absl::StatusOr<FieldIndex> pair = ParseWord({at, size_t(word_end - at)}, format);
    if (!pair.ok()) return pair.status();
    visit(*pair);
    at = word_end;
  }
  return static_cast<float>(label.value);
}

class LibffmDataset : public Dataset {
 public:
  LibffmDataset(TextRows rows, RowFormat format, bool has_labels, std::vector<PlacedLabel> extremes)
      : rows_(std::move(rows)), format_(format), has_labels_(has_labels), extremes_(std::move(extremes)) {
    for (uint64_t i = 0; i < format.fields; ++i) fields_.push_back(absl::StrCat(i));
  }

  uint64_t size() const override { return rows_.size(); }
  uint64_t features() const override { return 0; }
  absl::Span<const std::string> id_fields() const override { return fields_; }
  bool has_labels() const override { return has_labels_; }
  std::vector<PlacedLabel> ExtremeLabels() const override { return extremes_; }

  absl::Status Read(absl::Span<const uint64_t> indices, absl::Span<float> features, absl::Span<float> labels,
                    IdBags* ids) const override {
    if (absl::Status status = CheckRead(*this, indices, features, labels); !status.ok()) return status;
    ClearBags(ids);
    BagsOfExample bags;
    for (size_t i = 0; i < indices.size(); ++i) {
      const absl::StatusOr<float> label = ParseRow(rows_.Row(indices[i]), format_, [&](const FieldIndex& pair) {
        bags.Add(pair.field, CategoryRowId(pair.index, pair.field));
      });
      if (!label.ok()) {
        return absl::DataLossError(absl::StrCat(
            "example ", indices[i], " has changed in the file since it was opened: ", label.status().message()));
      }
      labels[i] = *label;
      bags.MoveTo(fields_.size(), ids);
    }
    return absl::OkStatus();
  }

 private:
  const TextRows rows_;
  const RowFormat format_;
  const bool has_labels_;
  const std::vector<PlacedLabel> extremes_;
  std::vector<std::string> fields_;
};

}  // namespace

// Opens a file in LIBFFM's format. Checks every line once and skips blank lines.
absl::StatusOr<std::unique_ptr<Dataset>> OpenLibffm(const v1::DataSource& source, const DatasetOptions& options) {
  constexpr uint32_t kMaxFields = 65536;
  const v1::Libffm& libffm = source.libffm();
  if (libffm.fields() < 1 || libffm.fields() > kMaxFields) {
    return absl::InvalidArgumentError(absl::StrCat("libffm.fields is ", libffm.fields(), ", want 1 to ", kMaxFields));
  }
  const RowFormat format = {.fields = libffm.fields(),
                            .first_field = libffm.one_based() ? 1u : 0u,
                            .labels_optional = options.labels_optional};
  LabelExtremes extremes;
  bool has_labels = true;
  const auto check = [&](absl::string_view line, uint64_t number) -> absl::StatusOr<bool> {
    if (absl::StripAsciiWhitespace(line).empty()) return false;
    const absl::StatusOr<float> label = ParseRow(line, format, [](const FieldIndex&) {});
    if (!label.ok()) return label.status();
    if (std::isnan(*label)) {
      has_labels = false;
    } else {
      extremes.Add(*label, number);
    }
    return true;
  };
  const std::string path = DataPath(options.base_folder, libffm.path());
  absl::StatusOr<TextRows> rows = OpenRows(path, options, check);
  if (!rows.ok()) return rows.status();
  const auto where = [&](uint64_t line) { return absl::StrCat(path, ":", line); };
  return std::make_unique<LibffmDataset>(*std::move(rows), format, has_labels, extremes.Describe(where));
}

}  // namespace ballast
