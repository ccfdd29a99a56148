// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <google/protobuf/text_format.h>

#include <cstddef>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ballast/v1/job.pb.h"
#include "common/job/job_file_validation.h"  // IWYU pragma: export

namespace ballast {

// Owns a job as one text has it, and the places of its fields in that text. Not validated: another text may complete
// it. Thread safety: immutable.
class JobText {
 public:
  // A place in a text: "job.textproto:12:3: ".
  struct Place {
    // Number of the path's fields that the text sets; 0: none, and `text` is only "job.textproto: ".
    size_t depth = 0;
    std::string text;
  };

  // NOT_FOUND if the path does not exist; otherwise as Parse.
  static absl::StatusOr<std::unique_ptr<JobText>> ReadFile(const std::string& path);
  static absl::StatusOr<std::unique_ptr<JobText>> ReadStandardInput();
  // INVALID_ARGUMENT lists up to five faults, one per line, in the order of the text: "fashion.textproto:12:3:
  // model.layers.dense has no field "unit"; did you mean "units"?". `name` is the text's name in messages.
  static absl::StatusOr<std::unique_ptr<JobText>> Parse(absl::string_view text, absl::string_view name);

  const v1::Job& job() const { return job_; }

  // Returns the place that sets the field that a fault starts with ("model.layers[3].dense.units: got ..."), or the
  // innermost message around it that the text sets.
  Place Find(absl::string_view fault) const;

 private:
  explicit JobText(absl::string_view name) : name_(name) {}

  const std::string name_;
  v1::Job job_;
  google::protobuf::TextFormat::ParseInfoTree places_;
};

// Reads and parses a job file; see ParseJob. NOT_FOUND if the path does not exist.
absl::StatusOr<v1::Job> LoadJob(const std::string& path);

// Parses a job file's text into a job that ValidateJob accepts; a missing policy becomes sync. INVALID_ARGUMENT lists
// up to five faults, one per line, in the order of the text: "fashion.textproto:12:3: model.layers.dense has no field
// "unit"; did you mean "units"?". A value out of range is reported at its field or, if the field is not set, at the
// enclosing message. `file_name` is used in messages only.
absl::StatusOr<v1::Job> ParseJob(absl::string_view text, absl::string_view file_name);

// Puts place(fault) in front of each fault, one per line, of ValidateJob. INVALID_ARGUMENT.
absl::Status PlaceFaults(const absl::Status& faults, absl::FunctionRef<std::string(absl::string_view)> place);

// Takes a field's name, "data.train.csv.path", and the path that it holds, which it may change.
using PathVisitor = absl::FunctionRef<void(const std::string& field, std::string& path)>;

// Calls `visit` for each path of a file that the job sets.
void VisitPaths(v1::Job& job, PathVisitor visit);

// Calls `visit` for each path that the data source's format has, also if it is empty. `name` is the source's own.
void VisitPaths(const std::string& name, v1::DataSource& source, PathVisitor visit);

// Makes the job's paths absolute; relative ones are relative to `folder`.
v1::Job WithAbsolutePaths(v1::Job job, const std::string& folder);

// Writes a file from which LoadJob reads the same job, below `comment`: lines that begin with "#", or nothing.
absl::Status SaveJob(const std::string& path, const v1::Job& job, absl::string_view comment);

}  // namespace ballast
