// SPDX-License-Identifier: Apache-2.0
#include "common/job/job_file.h"

#include <google/protobuf/text_format.h>

#include <filesystem>
#include <memory>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "ballast/v1/limits.pb.h"
#include "common/job/job_text.h"
#include "common/storage/file.h"

namespace ballast {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::TextFormat;

// The job of a text, if it is valid.
absl::StatusOr<v1::Job> Validated(const absl::StatusOr<std::unique_ptr<JobText>>& text) {
  if (!text.ok()) return text.status();
  v1::Job job = (*text)->job();
  if (!job.has_policy()) job.mutable_policy()->mutable_sync();
  if (absl::Status valid = ValidateJob(job); !valid.ok()) {
    return PlaceFaults(valid, [&](absl::string_view fault) { return (*text)->Find(fault).text; });
  }
  return job;
}

}  // namespace

absl::StatusOr<v1::Job> LoadJob(const std::string& path) { return Validated(JobText::ReadFile(path)); }

absl::StatusOr<v1::Job> ParseJob(absl::string_view text, absl::string_view file_name) {
  return Validated(JobText::Parse(text, file_name));
}

absl::Status PlaceFaults(const absl::Status& faults, absl::FunctionRef<std::string(absl::string_view)> place) {
  std::vector<std::string> lines;
  for (absl::string_view fault : absl::StrSplit(faults.message(), '\n')) {
    lines.push_back(absl::StartsWith(fault, "and ") ? std::string(fault) : absl::StrCat(place(fault), fault));
  }
  return absl::InvalidArgumentError(absl::StrJoin(lines, "\n"));
}

// A text that a data format requires is a path.
void VisitPaths(const std::string& name, v1::DataSource& source, PathVisitor visit) {
  const google::protobuf::Reflection* reflection = source.GetReflection();
  std::vector<const FieldDescriptor*> formats;
  reflection->ListFields(source, &formats);
  for (const FieldDescriptor* format : formats) {
    google::protobuf::Message* data = reflection->MutableMessage(&source, format);
    for (int i = 0; i < format->message_type()->field_count(); ++i) {
      const FieldDescriptor* field = format->message_type()->field(i);
      if (field->type() != FieldDescriptor::TYPE_STRING || field->is_repeated()) continue;
      if (field->options().GetExtension(v1::limits).required().empty()) continue;
      std::string path = data->GetReflection()->GetString(*data, field);
      visit(absl::StrCat(name, ".", format->name(), ".", field->name()), path);
      data->GetReflection()->SetString(data, field, path);
    }
  }
}

void VisitPaths(v1::Job& job, PathVisitor visit) {
  const auto visit_set = [&](const std::string& field, std::string& path) {
    if (!path.empty()) visit(field, path);
  };
  if (job.data().has_train()) VisitPaths("data.train", *job.mutable_data()->mutable_train(), visit_set);
  if (job.data().has_test()) VisitPaths("data.test", *job.mutable_data()->mutable_test(), visit_set);
  visit_set("init_from", *job.mutable_init_from());
}

v1::Job WithAbsolutePaths(v1::Job job, const std::string& folder) {
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::current_path(error) / folder;
  VisitPaths(job, [&](const std::string&, std::string& path) { path = (absolute / path).string(); });
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
