// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <google/protobuf/text_format.h>

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ballast/v1/job.pb.h"

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

}  // namespace ballast
