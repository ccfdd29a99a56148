// SPDX-License-Identifier: Apache-2.0
#include "common/job/job_file.h"

#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "ballast/v1/limits.pb.h"
#include "common/job/job_file_checker.h"
#include "common/storage/file.h"

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

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::TextFormat;

// Returns the position ("12:3: ") at which the text sets the field that a fault starts with
// ("model.layers[3].dense.units is ..."), or the innermost enclosing message that the text sets. Empty if it sets
// none of them.
std::string Place(absl::string_view fault, const Descriptor* type, const TextFormat::ParseInfoTree* tree) {
  std::string place;
  const absl::string_view path = fault.substr(0, fault.find_first_of(" :"));
  for (absl::string_view part : absl::StrSplit(path, '.')) {
    const std::vector<std::string> name_and_index = absl::StrSplit(part, absl::ByAnyChar("[]"));
    const FieldDescriptor* field = type->FindFieldByName(name_and_index[0]);
    int index = field != nullptr && field->is_repeated() ? 0 : -1;
    if (field == nullptr || (name_and_index.size() > 1 && !absl::SimpleAtoi(name_and_index[1], &index))) break;
    const TextFormat::ParseLocation at = tree->GetLocation(field, index);
    if (at.line < 0) break;
    place = absl::StrCat(at.line + 1, ":", at.column + 1, ": ");
    type = field->message_type();
    tree = type == nullptr ? nullptr : tree->GetTreeForNested(field, index);
    if (tree == nullptr) break;
  }
  return place;
}

}  // namespace

absl::StatusOr<v1::Job> LoadJob(const std::string& path) {
  struct stat status;
  if (stat(path.c_str(), &status) != 0) {
    const int error = errno;
    const std::string text = absl::StrCat("job file ", path, ": ", std::strerror(error));
    return error == ENOENT || error == ENOTDIR ? absl::NotFoundError(text) : absl::InvalidArgumentError(text);
  }
  // A pipe or device might never end.
  if (!S_ISREG(status.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat("job file ", path, " is not a regular file"));
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
  TextFormat::ParseInfoTree locations;
  TextFormat::Parser parser;
  parser.RecordErrorsTo(&errors);
  parser.WriteLocationsTo(&locations);
  if (!parser.ParseFromString(std::string(text), &job)) return ToStatus(file_name, errors.errors());

  if (!job.has_policy()) job.mutable_policy()->mutable_sync();
  if (absl::Status valid = ValidateJob(job); !valid.ok()) {
    std::vector<std::string> lines;
    for (absl::string_view fault : absl::StrSplit(valid.message(), '\n')) {
      if (absl::StartsWith(fault, "and ")) {
        lines.emplace_back(fault);
        continue;
      }
      const std::string place = Place(fault, v1::Job::descriptor(), &locations);
      lines.push_back(absl::StrCat(file_name, place.empty() ? ": " : ":", place, fault));
    }
    return absl::InvalidArgumentError(absl::StrJoin(lines, "\n"));
  }
  return job;
}

// A text that a data format requires is a path.
void EditPaths(v1::DataSource& source, absl::FunctionRef<std::string(const std::string&)> edit) {
  const google::protobuf::Reflection* reflection = source.GetReflection();
  std::vector<const FieldDescriptor*> formats;
  reflection->ListFields(source, &formats);
  for (const FieldDescriptor* format : formats) {
    google::protobuf::Message* data = reflection->MutableMessage(&source, format);
    for (int i = 0; i < format->message_type()->field_count(); ++i) {
      const FieldDescriptor* field = format->message_type()->field(i);
      if (field->type() != FieldDescriptor::TYPE_STRING || field->is_repeated()) continue;
      if (field->options().GetExtension(v1::limits).required().empty()) continue;
      data->GetReflection()->SetString(data, field, edit(data->GetReflection()->GetString(*data, field)));
    }
  }
}

v1::Job WithAbsolutePaths(v1::Job job, const std::string& folder) {
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::current_path(error) / folder;
  const auto edit = [&](const std::string& path) { return (absolute / path).string(); };
  EditPaths(*job.mutable_data()->mutable_train(), edit);
  if (job.data().has_test()) EditPaths(*job.mutable_data()->mutable_test(), edit);
  if (!job.init_from().empty()) job.set_init_from(edit(job.init_from()));
  return job;
}

absl::Status SaveJob(const std::string& path, const v1::Job& job, absl::string_view comment) {
  TextFormat::Printer printer;
  printer.SetUseUtf8StringEscaping(true);
  std::string text;
  printer.PrintToString(job, &text);
  return WriteFileAtomically(path, {comment, text});
}

}  // namespace ballast
