// SPDX-License-Identifier: Apache-2.0
#include "common/run/model_description.h"

#include <google/protobuf/util/json_util.h>

#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/job/job_file.h"
#include "common/job/kind_names.h"
#include "common/job/layer_names.h"
#include "common/job/limits.h"
#include "common/program/this_process.h"
#include "common/storage/file.h"
#include "common/text/json_fields.h"

namespace ballast {
namespace {

std::string ToJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string json;
  // Fails only for messages that no job contains, such as google.protobuf.Any.
  if (!google::protobuf::util::MessageToJsonString(message, &json, options).ok()) json.clear();
  return json;
}

using Json = nlohmann::ordered_json;
using Metadata = std::map<std::string, std::string>;

// Leaves `message` empty if the key is missing.
absl::Status ReadJson(const Metadata& metadata, const std::string& key, google::protobuf::Message& message) {
  const auto found = metadata.find(key);
  if (found == metadata.end()) return absl::OkStatus();
  const auto status = google::protobuf::util::JsonStringToMessage(found->second, &message);
  if (status.ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("metadata \"", key, "\": not JSON of a ",
                                                 message.GetDescriptor()->full_name(), ": ",
                                                 absl::string_view(status.message().data(), status.message().size())));
}

// Leaves `names` empty for an empty text.
absl::Status ReadNames(const std::string& text, std::vector<std::string>& names) {
  if (text.empty()) return absl::OkStatus();
  const Json list = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  bool valid = list.is_array();
  for (size_t i = 0; valid && i < list.size(); ++i) {
    valid = list[i].is_string();
    if (valid) names.push_back(list[i].get<std::string>());
  }
  if (valid) return absl::OkStatus();
  return absl::InvalidArgumentError("metadata \"id_fields\": want a JSON list of texts");
}

}  // namespace

ModelDescription DescribeModel(const v1::Job& job, int64_t features, const std::string& table,
                               absl::Span<const std::string> id_fields) {
  ModelDescription description{.model = job.model(),
                               .features = features,
                               .source = job.data().train(),
                               .normalization = job.data().normalization(),
                               .table = table,
                               .id_fields = {id_fields.begin(), id_fields.end()},
                               .job = job.name()};
  NameLayers(description.model);
  ForEachLayer(description.model, [](v1::Layer& layer) { layer.clear_device(); });
  VisitPaths("data", description.source, [](const std::string&, std::string& path) { path.clear(); });
  return description;
}

Metadata ToMetadata(const ModelDescription& description, uint64_t step) {
  Metadata metadata = {{"job", description.job},
                       {"step", absl::StrCat(step)},
                       {"ballast", kVersion},
                       {"model", ToJson(description.model)},
                       {"source", ToJson(description.source)},
                       {"normalization", ToJson(description.normalization)},
                       {"features", absl::StrCat(description.features)},
                       {"layout", "HWC"},
                       {"loss", KindName(description.model.loss())}};
  if (!description.table.empty()) metadata["table"] = description.table;
  if (!description.id_fields.empty()) metadata["id_fields"] = JsonLine(description.id_fields);
  return metadata;
}

absl::StatusOr<ModelDescription> ParseMetadata(const Metadata& metadata) {
  const auto text = [&](const std::string& key) {
    const auto found = metadata.find(key);
    return found == metadata.end() ? std::string() : found->second;
  };
  ModelDescription description{.table = text("table"), .job = text("job")};
  if (text("model").empty()) {
    return absl::InvalidArgumentError(
        "got no \"model\" in the metadata, want a model.safetensors that this version of Ballast has written");
  }
  absl::Status status = ReadJson(metadata, "model", description.model);
  status.Update(ReadJson(metadata, "source", description.source));
  status.Update(ReadJson(metadata, "normalization", description.normalization));
  if (!status.ok()) return status;
  if (!absl::SimpleAtoi(text("features"), &description.features)) {
    return absl::InvalidArgumentError(
        absl::StrCat("metadata \"features\": got \"", text("features"), "\", want a number"));
  }
  if (status = ReadNames(text("id_fields"), description.id_fields); !status.ok()) return status;
  ValidationErrors errors;
  CheckLimits(description.model, "model", errors);
  CheckLimits(description.normalization, "normalization", errors);
  CheckModel(description.model, errors);
  if (status = errors.First(); !status.ok()) return status;
  return description;
}

absl::Status WriteDescription(const std::string& path, const ModelDescription& description) {
  return WriteFileAtomically(path, {JsonLine(ToMetadata(description, /*step=*/0)), "\n"});
}

absl::StatusOr<ModelDescription> ReadDescription(const std::string& path) {
  const absl::StatusOr<std::string> file = ReadFile(path);
  if (!file.ok()) return file.status();
  const absl::StatusOr<Json> json = ParseJsonObject(*file);
  if (!json.ok()) return absl::Status(json.status().code(), absl::StrCat(path, ": ", json.status().message()));
  Metadata metadata;
  for (const auto& [key, value] : json->items()) {
    if (value.is_string()) metadata[key] = value.get<std::string>();
  }
  absl::StatusOr<ModelDescription> description = ParseMetadata(metadata);
  if (description.ok()) return description;
  return absl::Status(description.status().code(), absl::StrCat(path, ": ", description.status().message()));
}

}  // namespace ballast
