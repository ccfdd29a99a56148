// SPDX-License-Identifier: Apache-2.0
#include "common/job/job_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <vector>

#include "absl/memory/memory.h"
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

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::TextFormat;

constexpr size_t kMaxFileBytes = 4 << 20;

absl::StatusOr<std::string> ReadAll() {
  std::string text;
  char bytes[1 << 16];
  ssize_t got = 0;
  while (text.size() <= kMaxFileBytes && (got = read(STDIN_FILENO, bytes, sizeof(bytes))) != 0) {
    if (got > 0) text.append(bytes, got);
    if (got < 0 && errno != EINTR) return absl::ErrnoToStatus(errno, "cannot read the job from standard input");
  }
  return text;
}

absl::StatusOr<std::string> ReadRegularFile(const std::string& path) {
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
  return text;
}

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

absl::StatusOr<std::unique_ptr<JobText>> JobText::ReadFile(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadRegularFile(path);
  return text.ok() ? Parse(*text, path) : text.status();
}

absl::StatusOr<std::unique_ptr<JobText>> JobText::ReadStandardInput() {
  const absl::StatusOr<std::string> text = ReadAll();
  return text.ok() ? Parse(*text, "standard input") : text.status();
}

absl::StatusOr<std::unique_ptr<JobText>> JobText::Parse(absl::string_view text, absl::string_view name) {
  if (text.size() > kMaxFileBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": has ", text.size(), " bytes, want at most ", kMaxFileBytes));
  }
  auto parsed = absl::WrapUnique(new JobText(name));
  absl::Status status = ParseMessageText(text, name, "the job", &parsed->job_, &parsed->places_);
  if (!status.ok()) return status;
  return parsed;
}

JobText::Place JobText::Find(absl::string_view fault) const {
  Place place{0, absl::StrCat(name_, ": ")};
  const Descriptor* type = v1::Job::descriptor();
  const TextFormat::ParseInfoTree* tree = &places_;
  const absl::string_view path = fault.substr(0, fault.find_first_of(" :"));
  for (absl::string_view part : absl::StrSplit(path, '.')) {
    const std::vector<std::string> name_and_index = absl::StrSplit(part, absl::ByAnyChar("[]"));
    const FieldDescriptor* field = type->FindFieldByName(name_and_index[0]);
    int index = field != nullptr && field->is_repeated() ? 0 : -1;
    if (field == nullptr || (name_and_index.size() > 1 && !absl::SimpleAtoi(name_and_index[1], &index))) break;
    const TextFormat::ParseLocation at = tree->GetLocation(field, index);
    if (at.line < 0) break;
    ++place.depth;
    place.text = absl::StrCat(name_, ":", at.line + 1, ":", at.column + 1, ": ");
    type = field->message_type();
    tree = type == nullptr ? nullptr : tree->GetTreeForNested(field, index);
    if (tree == nullptr) break;
  }
  return place;
}

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
  if (job.data().has_stream()) visit_set("data.stream.sample", *job.mutable_data()->mutable_stream()->mutable_sample());
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
