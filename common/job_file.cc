// SPDX-License-Identifier: Apache-2.0
#include "common/job_file.h"

#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/job_file_checker.h"

namespace ballast {
namespace {

constexpr size_t kMaxFileBytes = 4 << 20;
constexpr size_t kMaxReported = 5;

class ErrorList : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line, int column, const std::string& message) override {
    errors_.push_back({line + 1, column + 1, message});
  }
  const std::vector<TextError>& errors() const { return errors_; }

 private:
  std::vector<TextError> errors_;
};

absl::Status ToStatus(absl::string_view file_name, const std::vector<TextError>& errors) {
  std::string text;
  const size_t shown = std::min(errors.size(), kMaxReported);
  for (size_t i = 0; i < shown; ++i) {
    const TextError& error = errors[i];
    absl::StrAppend(&text, i == 0 ? "" : "\n", file_name, ":", error.line, ":", error.column, ": ", error.message);
  }
  if (shown < errors.size()) absl::StrAppend(&text, "\nand ", errors.size() - shown, " more");
  return absl::InvalidArgumentError(text);
}

}  // namespace

absl::StatusOr<v1::Job> LoadJob(const std::string& path) {
  struct stat status;
  if (stat(path.c_str(), &status) != 0) {
    const int error = errno;
    const std::string text = absl::StrCat("job file ", path, ": ", std::strerror(error));
    return error == ENOENT || error == ENOTDIR ? absl::NotFoundError(text) : absl::InvalidArgumentError(text);
  }
  // A pipe or device could be read without end.
  if (!S_ISREG(status.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat("job file ", path, " is no regular file"));
  }
  if (status.st_size > kMaxFileBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("job file ", path, " has ", status.st_size, " bytes, want at most ", kMaxFileBytes));
  }
  std::ifstream file(path, std::ios::binary);
  std::string text(status.st_size, '\0');
  file.read(text.data(), text.size());
  if (!file && !file.eof()) {
    return absl::InvalidArgumentError(absl::StrCat("job file ", path, " cannot be read"));
  }
  text.resize(file.gcount());
  return ParseJob(text, path);
}

absl::StatusOr<v1::Job> ParseJob(absl::string_view text, absl::string_view file_name) {
  if (text.size() > kMaxFileBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(file_name, ": has ", text.size(), " bytes, want at most ", kMaxFileBytes));
  }
  const std::vector<TextError> faults = CheckMessageText(text, *v1::Job::descriptor(), "the job");
  if (!faults.empty()) return ToStatus(file_name, faults);

  v1::Job job;
  ErrorList errors;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&errors);
  if (!parser.ParseFromString(std::string(text), &job)) return ToStatus(file_name, errors.errors());

  if (!job.has_policy()) job.mutable_policy()->mutable_sync();
  if (absl::Status valid = ValidateJob(job); !valid.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(file_name, ": ", valid.message()));
  }
  return job;
}

absl::Status OverrideMode(v1::Job& job, absl::string_view mode) {
  if (mode == "sync") {
    job.mutable_policy()->mutable_sync();
  } else if (mode == "async") {
    job.mutable_policy()->mutable_async();
  } else {
    return absl::InvalidArgumentError(absl::StrCat("mode is \"", mode, "\", want sync or async"));
  }
  return absl::OkStatus();
}

}  // namespace ballast
