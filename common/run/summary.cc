// SPDX-License-Identifier: Apache-2.0
#include "common/run/summary.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/run/file.h"
#include "common/run/json_fields.h"

namespace ballast {
namespace {

using Json = nlohmann::ordered_json;

Json NumberOrNull(const std::optional<double>& value) { return value.has_value() ? Json(*value) : Json(nullptr); }

template <typename T>
void Assign(T& field, absl::StatusOr<T> value, absl::Status& status) {
  status.Update(value.status());
  if (value.ok()) field = *std::move(value);
}

}  // namespace

std::string SummaryToJson(const Summary& summary) {
  return JsonLine({{"job", summary.job},
                   {"mode", summary.mode},
                   {"servers", summary.servers},
                   {"workers", summary.workers},
                   {"epochs", summary.epochs},
                   {"steps", summary.steps},
                   {"examples", summary.examples},
                   {"seconds", summary.seconds},
                   {"samples_per_second", summary.samples_per_second},
                   {"train_loss", summary.train_loss},
                   {"test_loss", NumberOrNull(summary.test_loss)},
                   {"test_accuracy", NumberOrNull(summary.test_accuracy)},
                   {"run_dir", summary.run_dir},
                   {"interrupted", summary.interrupted},
                   {"device", summary.device},
                   {"version", summary.version}});
}

absl::StatusOr<Summary> SummaryFromJson(absl::string_view json) {
  const absl::StatusOr<Json> object = ParseJsonObject(json);
  if (!object.ok()) return object.status();
  Summary summary;
  absl::Status status;
  Assign(summary.job, StringField(*object, "job"), status);
  Assign(summary.mode, StringField(*object, "mode"), status);
  Assign(summary.servers, CountField(*object, "servers"), status);
  Assign(summary.workers, CountField(*object, "workers"), status);
  Assign(summary.epochs, CountField(*object, "epochs"), status);
  Assign(summary.steps, CountField(*object, "steps"), status);
  Assign(summary.examples, CountField(*object, "examples"), status);
  Assign(summary.seconds, NumberField(*object, "seconds"), status);
  Assign(summary.samples_per_second, NumberField(*object, "samples_per_second"), status);
  Assign(summary.train_loss, NumberField(*object, "train_loss"), status);
  Assign(summary.test_loss, OptionalNumberField(*object, "test_loss"), status);
  Assign(summary.test_accuracy, OptionalNumberField(*object, "test_accuracy"), status);
  Assign(summary.run_dir, StringField(*object, "run_dir"), status);
  Assign(summary.interrupted, BoolField(*object, "interrupted"), status);
  Assign(summary.device, StringField(*object, "device"), status);
  Assign(summary.version, StringField(*object, "version"), status);
  if (!status.ok()) return status;
  return summary;
}

absl::Status WriteSummary(const std::string& path, const Summary& summary) {
  return WriteFileAtomically(path, {SummaryToJson(summary), "\n"});
}

absl::StatusOr<Summary> ReadSummary(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok()) return text.status();
  absl::StatusOr<Summary> summary = SummaryFromJson(*text);
  if (!summary.ok()) {
    return absl::Status(summary.status().code(), absl::StrCat(path, ": ", summary.status().message()));
  }
  return summary;
}

}  // namespace ballast
