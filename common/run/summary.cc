// SPDX-License-Identifier: Apache-2.0
#include "common/run/summary.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/storage/file.h"
#include "common/text/json_fields.h"

namespace ballast {
namespace {

using Json = nlohmann::ordered_json;

// Bucket i ends at 2^i, which must fit.
constexpr size_t kMaxBuckets = 63;
// Maximum count of one bucket, so that the sum of all fits.
constexpr uint64_t kMaxCount = uint64_t{1} << 53;

Json NumberOrNull(const std::optional<double>& value) { return value.has_value() ? Json(*value) : Json(nullptr); }

Json CountOrNull(const std::optional<double>& value) {
  return value.has_value() ? Json(static_cast<uint64_t>(*value)) : Json(nullptr);
}

Json CountOrNull(const std::optional<int64_t>& value) {
  return value.has_value() ? Json(static_cast<uint64_t>(*value)) : Json(nullptr);
}

// Returns nullopt if the field is missing or null.
absl::StatusOr<std::optional<int64_t>> OptionalCountField(const Json& object, const char* key) {
  const auto it = object.find(key);
  if (it == object.end() || it->is_null()) return std::nullopt;
  return CountField(object, key);
}

Json ToJson(const Distribution& distribution) {
  return {{"buckets", distribution.buckets}, {"mean", distribution.mean}, {"max", distribution.max}};
}

absl::StatusOr<std::vector<int64_t>> CountsField(const Json& object, const char* key) {
  const auto list = object.find(key);
  if (list == object.end() || !list->is_array() || !std::all_of(list->begin(), list->end(), [](const Json& count) {
        return count.is_number_unsigned() && count.get<uint64_t>() <= kMaxCount;
      })) {
    return absl::InvalidArgumentError(absl::StrCat("\"", key, "\" is not a list of counts"));
  }
  return list->get<std::vector<int64_t>>();
}

absl::StatusOr<std::vector<double>> SecondsField(const Json& object, const char* key) {
  const auto list = object.find(key);
  if (list == object.end() || !list->is_array() || !std::all_of(list->begin(), list->end(), [](const Json& seconds) {
        return seconds.is_number() && seconds.get<double>() >= 0;
      })) {
    return absl::InvalidArgumentError(absl::StrCat("\"", key, "\" is not a list of seconds"));
  }
  return list->get<std::vector<double>>();
}

absl::StatusOr<Distribution> DistributionField(const Json& object, const char* key) {
  const auto it = object.find(key);
  if (it == object.end() || !it->is_object()) {
    return absl::InvalidArgumentError(absl::StrCat("\"", key, "\" is not an object, want buckets, mean and max"));
  }
  Distribution distribution;
  absl::StatusOr<std::vector<int64_t>> buckets = CountsField(*it, "buckets");
  if (!buckets.ok()) return absl::InvalidArgumentError(absl::StrCat("\"", key, "\": buckets are not a list of counts"));
  if (buckets->size() > kMaxBuckets) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", key, "\" has ", buckets->size(), " buckets, want at most ", kMaxBuckets));
  }
  distribution.buckets = *std::move(buckets);
  const absl::StatusOr<double> mean = NumberField(*it, "mean");
  const absl::StatusOr<int64_t> max = CountField(*it, "max");
  if (!mean.ok()) return mean.status();
  if (!max.ok()) return max.status();
  distribution.mean = *mean;
  distribution.max = *max;
  return distribution;
}

Json ToJson(const MemoryBytes& bytes) {
  return {{"weights", bytes.weights},     {"gradients", bytes.gradients}, {"activations", bytes.activations},
          {"workspace", bytes.workspace}, {"staging", bytes.staging},     {"pinned", bytes.pinned}};
}

absl::StatusOr<MemoryBytes> MemoryField(const Json& object, const char* key) {
  const auto it = object.find(key);
  if (it == object.end() || !it->is_object()) {
    return absl::InvalidArgumentError(absl::StrCat("\"", key, "\" is not an object, want bytes by use"));
  }
  MemoryBytes bytes;
  for (const auto& [use, field] :
       {std::pair("weights", &bytes.weights), std::pair("gradients", &bytes.gradients),
        std::pair("activations", &bytes.activations), std::pair("workspace", &bytes.workspace),
        std::pair("staging", &bytes.staging), std::pair("pinned", &bytes.pinned)}) {
    const absl::StatusOr<int64_t> count = CountField(*it, use);
    if (!count.ok()) return count.status();
    *field = *count;
  }
  return bytes;
}

template <typename T>
void Assign(T& field, absl::StatusOr<T> value, absl::Status& status) {
  status.Update(value.status());
  if (value.ok()) field = *std::move(value);
}

// Reads the fields that earlier releases did not write; all or none of them are present.
void AssignLaterFields(const Json& object, Summary& summary, absl::Status& status) {
  if (!object.contains("codec")) return;
  Assign(summary.quorum, OptionalNumberField(object, "quorum"), status);
  // "staleness_bound" is the old name of steps_ahead.
  const char* steps_ahead = object.contains("steps_ahead") ? "steps_ahead" : "staleness_bound";
  Assign(summary.steps_ahead, OptionalNumberField(object, steps_ahead), status);
  Assign(summary.local_steps, OptionalNumberField(object, "local_steps"), status);
  Assign(summary.codec, StringField(object, "codec"), status);
  Assign(summary.value_codec, StringField(object, "value_codec"), status);
  Assign(summary.learning_rate, NumberField(object, "learning_rate"), status);
  Assign(summary.max_staleness, CountField(object, "max_staleness"), status);
  Assign(summary.mean_staleness, NumberField(object, "mean_staleness"), status);
  Assign(summary.staleness, DistributionField(object, "staleness"), status);
  Assign(summary.dropped, CountField(object, "dropped"), status);
  Assign(summary.wait_share, NumberField(object, "wait_share"), status);
  Assign(summary.wait_microseconds, DistributionField(object, "wait_microseconds"), status);
  Assign(summary.bytes_sent, CountField(object, "bytes_sent"), status);
  Assign(summary.bytes_received, CountField(object, "bytes_received"), status);
  Assign(summary.gradient_bytes, CountField(object, "gradient_bytes"), status);
  Assign(summary.bytes_sent_per_step, NumberField(object, "bytes_sent_per_step"), status);
  Assign(summary.bytes_received_per_step, NumberField(object, "bytes_received_per_step"), status);
  if (!object.contains("precision")) return;
  Assign(summary.precision, StringField(object, "precision"), status);
  Assign(summary.skipped_steps, CountField(object, "skipped_steps"), status);
  Assign(summary.loss_scale, OptionalNumberField(object, "loss_scale"), status);
  Assign(summary.memory, MemoryField(object, "memory"), status);
  if (!object.contains("restarts")) return;
  Assign(summary.restarts, CountField(object, "restarts"), status);
  Assign(summary.workers_lost, CountField(object, "workers_lost"), status);
  Assign(summary.examples_repeated, CountField(object, "examples_repeated"), status);
  Assign(summary.pushes_lost, OptionalNumberField(object, "pushes_lost"), status);
  Assign(summary.pushes_duplicated, OptionalNumberField(object, "pushes_duplicated"), status);
  if (!object.contains("pushes_lost_by_shard")) return;
  Assign(summary.pushes_lost_by_shard, CountsField(object, "pushes_lost_by_shard"), status);
  if (!object.contains("train_loss_epoch")) return;
  Assign(summary.train_loss_epoch, CountField(object, "train_loss_epoch"), status);
  Assign(summary.train_loss_examples, CountField(object, "train_loss_examples"), status);
  Assign(summary.server_seconds, NumberField(object, "server_seconds"), status);
  if (!object.contains("best_epoch")) return;
  Assign(summary.best_epoch, OptionalNumberField(object, "best_epoch"), status);
  Assign(summary.stopped_early, BoolField(object, "stopped_early"), status);
  if (!object.contains("gpu_peak_bytes")) return;
  Assign(summary.gpu_peak_bytes, CountsField(object, "gpu_peak_bytes"), status);
  if (!object.contains("caused_wait_seconds")) return;
  Assign(summary.caused_wait_seconds, SecondsField(object, "caused_wait_seconds"), status);
}

}  // namespace

std::string SummaryToJson(const Summary& summary) {
  return JsonLine({{"job", summary.job},
                   {"mode", summary.mode},
                   {"quorum", CountOrNull(summary.quorum)},
                   {"steps_ahead", CountOrNull(summary.steps_ahead)},
                   {"local_steps", CountOrNull(summary.local_steps)},
                   {"codec", summary.codec},
                   {"value_codec", summary.value_codec},
                   {"precision", summary.precision},
                   {"servers", summary.servers},
                   {"workers", summary.workers},
                   {"epochs", summary.epochs},
                   {"steps", summary.steps},
                   {"examples", summary.examples},
                   {"seconds", summary.seconds},
                   {"samples_per_second", summary.samples_per_second},
                   {"train_loss", summary.train_loss},
                   {"train_loss_epoch", summary.train_loss_epoch},
                   {"train_loss_examples", summary.train_loss_examples},
                   {"test_loss", NumberOrNull(summary.test_loss)},
                   {"test_accuracy", NumberOrNull(summary.test_accuracy)},
                   {"test_auc", NumberOrNull(summary.test_auc)},
                   {"bayes_auc", NumberOrNull(summary.bayes_auc)},
                   {"log_loss", NumberOrNull(summary.log_loss)},
                   {"calibration", NumberOrNull(summary.calibration)},
                   {"rows", CountOrNull(summary.rows)},
                   {"table_bytes", CountOrNull(summary.table_bytes)},
                   {"learning_rate", summary.learning_rate},
                   {"max_staleness", summary.max_staleness},
                   {"mean_staleness", summary.mean_staleness},
                   {"staleness", ToJson(summary.staleness)},
                   {"dropped", summary.dropped},
                   {"wait_share", summary.wait_share},
                   {"wait_microseconds", ToJson(summary.wait_microseconds)},
                   {"caused_wait_seconds", summary.caused_wait_seconds},
                   {"server_seconds", summary.server_seconds},
                   {"bytes_sent", summary.bytes_sent},
                   {"bytes_received", summary.bytes_received},
                   {"gradient_bytes", summary.gradient_bytes},
                   {"bytes_sent_per_step", summary.bytes_sent_per_step},
                   {"bytes_received_per_step", summary.bytes_received_per_step},
                   {"skipped_steps", summary.skipped_steps},
                   {"loss_scale", NumberOrNull(summary.loss_scale)},
                   {"memory", ToJson(summary.memory)},
                   {"gpu_peak_bytes", summary.gpu_peak_bytes},
                   {"restarts", summary.restarts},
                   {"workers_lost", summary.workers_lost},
                   {"examples_repeated", summary.examples_repeated},
                   {"pushes_lost", CountOrNull(summary.pushes_lost)},
                   {"pushes_duplicated", CountOrNull(summary.pushes_duplicated)},
                   {"pushes_lost_by_shard", summary.pushes_lost_by_shard},
                   {"run_dir", summary.run_dir},
                   {"best_epoch", CountOrNull(summary.best_epoch)},
                   {"stopped_early", summary.stopped_early},
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
  // Earlier releases did not write these.
  Assign(summary.test_auc, OptionalNumberField(*object, "test_auc"), status);
  Assign(summary.bayes_auc, OptionalNumberField(*object, "bayes_auc"), status);
  Assign(summary.log_loss, OptionalNumberField(*object, "log_loss"), status);
  Assign(summary.calibration, OptionalNumberField(*object, "calibration"), status);
  Assign(summary.rows, OptionalCountField(*object, "rows"), status);
  Assign(summary.table_bytes, OptionalCountField(*object, "table_bytes"), status);
  Assign(summary.run_dir, StringField(*object, "run_dir"), status);
  Assign(summary.interrupted, BoolField(*object, "interrupted"), status);
  Assign(summary.device, StringField(*object, "device"), status);
  Assign(summary.version, StringField(*object, "version"), status);
  AssignLaterFields(*object, summary, status);
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
