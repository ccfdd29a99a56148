// SPDX-License-Identifier: Apache-2.0
#include "common/job/job_file_validation.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/codecs/codec.h"
#include "common/job/job_length.h"
#include "common/job/limits.h"
#include "common/job/model_validation.h"
#include "common/job/optimizer_config.h"
#include "common/job/policy_config.h"
#include "common/text/validation_errors.h"

namespace ballast {
namespace {

bool IsJobName(absl::string_view name) {
  return !name.empty() && name.size() <= 63 && absl::ascii_islower(name[0]) &&
         std::all_of(name.begin(), name.end(),
                     [](char c) { return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '_' || c == '-'; });
}

// True for a character that can stand between numbers.
bool IsDelimiter(absl::string_view text) {
  return text.size() == 1 && (absl::ascii_isprint(text[0]) || text[0] == '\t') && !absl::ascii_isalnum(text[0]) &&
         text[0] != '+' && text[0] != '-' && text[0] != '.' && text[0] != '"';
}

void CheckDelimiter(const v1::DataSource& source, const std::string& field, ValidationErrors& errors) {
  const std::string& delimiter = source.csv().delimiter();
  errors.CheckText(delimiter.empty() || IsDelimiter(delimiter), field + ".csv.delimiter", delimiter,
                   "one character that cannot be part of a number");
}

}  // namespace

absl::Status ValidateJob(const v1::Job& job) {
  ValidationErrors errors;
  errors.CheckText(IsJobName(job.name()), "name", job.name(),
                   "1 to 63 of a-z, 0-9, '_' and '-', starting with a letter");
  // The optimizer and the policy have checks of their own.
  v1::Job rest = job;
  rest.clear_optimizer();
  rest.clear_policy();
  CheckLimits(rest, "", errors);
  CheckDelimiter(job.data().train(), "data.train", errors);
  CheckDelimiter(job.data().test(), "data.test", errors);
  CheckModel(job.model(), errors);
  errors.Check(!job.optimizer().schedule().total_from_job(), "optimizer.schedule.total_from_job", "true",
               "it left out: a schedule without a total follows the job");
  // A total of 0 means the job's length, which is known only once the data is loaded.
  errors.Add(ValidateOptimizer(WithScheduleLength(job.optimizer(), 2)));
  errors.Add(ValidateCodec(job.codec()));
  if (job.has_policy()) errors.Add(ValidatePolicy(job.policy(), 0));
  return errors.ToStatus();
}

}  // namespace ballast
