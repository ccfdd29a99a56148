// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ballast/v1/job.pb.h"
#include "common/run/model_description.h"
#include "worker/data/datasets/dataset.h"
#include "worker/data/datasets/table_schema.h"

namespace ballast {

// Examples without labels, as a model takes them.
struct Examples {
  uint64_t count = 0;
  // [count, features], row-major, normalized.
  std::vector<float> features;
  IdBags ids;
};

// Turns the texts of requests into examples, in the same way as the training data became examples. Thread safety:
// immutable.
class ExampleReader {
 public:
  // Most examples in a request.
  static constexpr uint64_t kMaxExamples = 65536;
  // Most values of a request's examples together, such as features: a short line may stand for many of them.
  static constexpr uint64_t kMaxValues = uint64_t{1} << 22;

  // INVALID_ARGUMENT if the description does not give the format of its training data.
  static absl::StatusOr<std::unique_ptr<ExampleReader>> Create(const ModelDescription& description);

  // Returns the field of v1.DataSource, such as "criteo".
  std::string format() const;

  // Reads lines as in a file of the training data's format. The label may be missing. INVALID_ARGUMENT names the line
  // and the column.
  absl::StatusOr<Examples> ReadLines(const google::protobuf::RepeatedPtrField<std::string>& lines) const;

  // Reads a JSON list. All examples are of one kind:
  //   texts: lines, as above;
  //   objects, if the model was trained from CSV with column names: the values of columns by name. A column that is
  //     null or absent is a missing value;
  //   lists: the row of a CSV file; the features, before normalization, for a model of IDX or LIBSVM data.
  absl::StatusOr<Examples> ReadJson(const nlohmann::json& list) const;

 private:
  ExampleReader(const ModelDescription& description, v1::DataSource source, std::optional<TableSchema> schema);

  // Refuses more examples than a request may have, before there is memory for them.
  absl::Status CheckCount(uint64_t count) const;
  absl::StatusOr<Examples> Read(absl::string_view text, bool header) const;
  // Refuses a text of which the reader skips lines.
  absl::StatusOr<Examples> ReadExactly(uint64_t count, absl::string_view text, bool header) const;
  // Adds a line to a text for Read. Errors name the example.
  static absl::Status AddLine(size_t example, const std::string& line, std::string& text);
  absl::StatusOr<Examples> ReadObjects(const nlohmann::json& list) const;
  absl::StatusOr<Examples> ReadLists(const nlohmann::json& list) const;
  absl::StatusOr<Examples> ReadFeatures(const nlohmann::json& list) const;

  const v1::DataSource source_;
  const v1::Normalization normalization_;
  const uint64_t features_;
  // Values that an example takes while it is read; at least 1.
  const uint64_t width_;
  // Set for CSV.
  const std::optional<TableSchema> schema_;
};

}  // namespace ballast
