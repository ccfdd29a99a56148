// SPDX-License-Identifier: Apache-2.0
#include "common/job/job_file_validation.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/codecs/codec.h"
#include "common/job/job_length.h"
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

// Returns whether the text is one character that can separate numbers.
bool IsDelimiter(absl::string_view text) {
  return text.size() == 1 && (absl::ascii_isprint(text[0]) || text[0] == '\t') && !absl::ascii_isalnum(text[0]) &&
         text[0] != '+' && text[0] != '-' && text[0] != '.' && text[0] != '"';
}

bool IsPositive(double x) { return std::isfinite(x) && x > 0; }
void CheckSource(const v1::DataSource& source, const std::string& field, ValidationErrors& errors) {
  switch (source.format_case()) {
    case v1::DataSource::kIdx:
      errors.CheckRequired(!source.idx().images().empty(), field + ".idx.images", "a path");
      errors.CheckRequired(!source.idx().labels().empty(), field + ".idx.labels", "a path");
      break;
    case v1::DataSource::kCsv:
      errors.CheckRequired(!source.csv().path().empty(), field + ".csv.path", "a path");
      errors.CheckText(source.csv().delimiter().empty() || IsDelimiter(source.csv().delimiter()),
                       field + ".csv.delimiter", source.csv().delimiter(),
                       "one character that cannot be part of a number");
      break;
    case v1::DataSource::kLibsvm:
      errors.CheckRequired(!source.libsvm().path().empty(), field + ".libsvm.path", "a path");
      errors.Check(source.libsvm().features() >= 1, field + ".libsvm.features", source.libsvm().features(),
                   "at least 1");
      break;
    case v1::DataSource::FORMAT_NOT_SET:
      errors.CheckRequired(false, field, "idx, csv or libsvm");
  }
}

void CheckData(const v1::Data& data, ValidationErrors& errors) {
  CheckSource(data.train(), "data.train", errors);
  if (data.has_test()) CheckSource(data.test(), "data.test", errors);
  const v1::Normalization& normalization = data.normalization();
  errors.Check(std::isfinite(normalization.mean()), "data.normalization.mean", normalization.mean(), "a finite number");
  errors.Check(!normalization.has_stddev() || IsPositive(normalization.stddev()), "data.normalization.stddev",
               normalization.stddev(), "a finite number above 0");
}

void CheckTraining(const v1::Training& training, ValidationErrors& errors) {
  errors.Check(training.epochs() >= 1 && training.epochs() <= 1000000, "training.epochs", training.epochs(),
               "1 to 1000000");
  errors.Check(training.batch_size() >= 1 && training.batch_size() <= 1048576, "training.batch_size",
               training.batch_size(), "1 to 1048576");
  errors.Check(training.wait_seconds() <= 600, "training.wait_seconds", training.wait_seconds(),
               "1 to 600, or nothing for 60");
  errors.Check(training.accumulate_batches() <= 65536, "training.accumulate_batches", training.accumulate_batches(),
               "1 to 65536, or nothing for 1");
  errors.Check(v1::Precision_IsValid(training.precision()), "training.precision", training.precision(),
               "FP32, TF32, BF16 or FP16");
}

void CheckDurability(const v1::Durability& durability, ValidationErrors& errors) {
  errors.Check(v1::Durability::Mode_IsValid(durability.mode()), "durability.mode", durability.mode(),
               "NONE, CHECKPOINT, WAL, WAL_SYNC or STANDBY");
  errors.Check(durability.checkpoint_seconds() <= 86400, "durability.checkpoint_seconds",
               durability.checkpoint_seconds(), "1 to 86400, or nothing for 60");
  errors.Check(durability.keep_checkpoints() <= 1000, "durability.keep_checkpoints", durability.keep_checkpoints(),
               "1 to 1000, or nothing for 2");
  errors.Check(durability.return_seconds() <= 600, "durability.return_seconds", durability.return_seconds(),
               "1 to 600, or nothing for 60");
}

}  // namespace

absl::Status ValidateJob(const v1::Job& job) {
  ValidationErrors errors;
  errors.CheckText(IsJobName(job.name()), "name", job.name(),
                   "1 to 63 of a-z, 0-9, '_' and '-', starting with a letter");
  CheckData(job.data(), errors);
  CheckModel(job.model(), errors);
  CheckTraining(job.training(), errors);
  CheckDurability(job.durability(), errors);
  errors.Check(!job.optimizer().schedule().total_from_job(), "optimizer.schedule.total_from_job", "true",
               "it left out: a schedule without a total follows the job");
  // A total of 0 means the job's length, which is known only once the data is loaded.
  errors.Add(ValidateOptimizer(WithScheduleLength(job.optimizer(), 2)));
  errors.Add(ValidateCodec(job.codec()));
  if (job.has_policy()) errors.Add(ValidatePolicy(job.policy(), 0));
  return errors.ToStatus();
}

}  // namespace ballast
