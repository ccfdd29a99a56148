// SPDX-License-Identifier: Apache-2.0
#include "worker/training/worker_resources.h"

#include <algorithm>
#include <cmath>
#include <iostream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/job/job_length.h"
#include "common/job/job_overrides.h"
#include "worker/data/datasets/example_values.h"
#include "worker/data/datasets/job_data.h"
#include "worker/data/datasets/table_schema.h"
#include "worker/model/model.h"
#include "worker/model/parallel/replicated_model.h"

namespace ballast {
namespace {

// Examples in one evaluation batch, unless training batches are larger or the device has too little memory.
constexpr int64_t kEvaluationBatch = 256;

void AddPlaced(const google::protobuf::RepeatedPtrField<v1::Layer>& layers, const std::string& list,
               std::vector<WorkerDevices::Placed>& placed) {
  for (int i = 0; i < layers.size(); ++i) {
    const v1::Layer& layer = layers[i];
    const std::string field = absl::StrCat(list, "[", i, "]");
    if (!layer.device().empty()) {
      placed.push_back({layer.name().empty() ? field : absl::StrCat("layer \"", layer.name(), "\""), layer.device()});
    }
    AddPlaced(layer.residual().layers(), field + ".residual.layers", placed);
    AddPlaced(layer.residual().shortcut(), field + ".residual.shortcut", placed);
  }
}

// The layers whose `device` is set.
std::vector<WorkerDevices::Placed> PlacedLayers(const v1::Model& model) {
  std::vector<WorkerDevices::Placed> placed;
  AddPlaced(model.layers(), "model.layers", placed);
  return placed;
}

Precision ToDevice(v1::Precision precision) {
  switch (precision) {
    case v1::TF32:
      return Precision::kTf32;
    case v1::BF16:
      return Precision::kBf16;
    case v1::FP16:
      return Precision::kFp16;
    default:
      return Precision::kFp32;
  }
}

absl::Status SetPrecision(v1::Precision precision, WorkerDevices& devices) {
  const Precision requested = ToDevice(precision);
  const absl::StatusOr<Precision> used = devices.SetPrecision(requested);
  if (!used.ok()) return used.status();
  if (*used != requested) {
    std::cerr << "precision " << PrecisionName(precision) << ": this device computes in fp32, which is more exact"
              << std::endl;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<TrainableModel>> CreateModel(const v1::Job& job, const WorkerResources& resources) {
  const absl::Span<const std::string> fields = resources.train->id_fields();
  const ModelOptions options{.features = static_cast<int64_t>(resources.train->features()),
                             .id_fields = {fields.begin(), fields.end()},
                             .seed = job.seed(),
                             .max_batch = resources.max_batch,
                             .recompute = job.training().recompute(),
                             .freeze = {job.freeze().begin(), job.freeze().end()},
                             .devices = resources.devices.devices()};
  if (resources.devices.split()) return ReplicatedModel::Create(job.model(), options);
  return Model::Create(job.model(), options);
}

// Opens the model and its codec, for batches of `to.max_batch`.
absl::Status OpenModel(const v1::Job& job, TimelineRecorder* timeline, WorkerResources& to) {
  absl::StatusOr<std::unique_ptr<TrainableModel>> model = CreateModel(job, to);
  if (!model.ok()) return model.status();
  to.model = *std::move(model);
  v1::Codec codec = job.codec();
  // The host sums the gradients of several batches and makes local steps in fp32.
  if (BatchesPerPush(job) > 1) codec.clear_gradients();
  if (job.policy().has_local_sgd()) codec.Clear();
  absl::StatusOr<std::unique_ptr<DeviceCodec>> device_codec = DeviceCodec::Create(to.model.get(), codec, timeline);
  if (!device_codec.ok()) return device_codec.status();
  to.codec = *std::move(device_codec);
  return absl::OkStatus();
}

// Checks that a model fits labels that are text.
absl::Status CheckClasses(const TableSchema& schema, const TrainableModel& model) {
  if (!schema.text_labels) return absl::OkStatus();
  if (!model.classifies()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the labels are text, want a loss for classes: the data has ", ClassesText(schema)));
  }
  if (model.predicts_probability()) {
    if (schema.classes.size() == 2) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "sigmoid_cross_entropy tells 2 classes apart, want as many in the data: it has ", ClassesText(schema)));
  }
  if (model.outputs() == static_cast<int64_t>(schema.classes.size())) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the last layer has ", model.outputs(), " outputs, want ",
                                                 schema.classes.size(), ": the data has ", ClassesText(schema)));
}

}  // namespace

absl::Status CheckLabels(const Dataset& data, const TrainableModel& model) {
  if (data.schema() != nullptr) {
    if (absl::Status status = CheckClasses(*data.schema(), model); !status.ok()) return status;
  }
  for (const PlacedLabel& label : data.ExtremeLabels()) {
    if (absl::Status status = model.CheckLabel(label.label); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(label.where, ": ", status.message()));
    }
  }
  return absl::OkStatus();
}

std::string LabelAdvice(const Dataset& data, const TrainableModel& model) {
  // A model's outputs begin near 0, and change slowly or, with a large learning rate, without bounds.
  constexpr float kLarge = 100;
  if (model.classifies() || model.predicts_probability()) return "";
  for (const PlacedLabel& label : data.ExtremeLabels()) {
    if (std::abs(label.label) <= kLarge) continue;
    return absl::StrCat(label.where, " has the label ", label.label,
                        ": mean_squared_error learns such large quantities slowly, or diverges; divide the labels by a "
                        "number that leaves them near 1");
  }
  return "";
}

absl::StatusOr<WorkerResources> OpenWorkerResources(const v1::Job& job, const std::string& job_folder,
                                                    WorkerDevices::Request request, TimelineRecorder* timeline) {
  request.placed = PlacedLayers(job.model());
  absl::StatusOr<WorkerDevices> devices = WorkerDevices::Open(request);
  if (!devices.ok()) return devices.status();
  WorkerResources resources{.devices = *std::move(devices)};
  if (absl::Status status = SetPrecision(job.training().precision(), resources.devices); !status.ok()) return status;
  absl::StatusOr<JobData> data = OpenJobData(job.data(), job.seed(), job_folder);
  if (!data.ok()) return data.status();
  resources.train = std::move(data->train);
  resources.test = std::move(data->test);
  resources.stream = std::move(data->stream);
  resources.train_examples =
      resources.stream == nullptr ? resources.train->size() : StreamEpochExamples(job.data().stream());
  const int64_t batch = job.training().batch_size();
  resources.max_batch = std::max(batch, kEvaluationBatch);
  absl::Status status = OpenModel(job, timeline, resources);
  if (absl::IsResourceExhausted(status) && batch < kEvaluationBatch) {
    // Smaller evaluation batches are slower but need less memory.
    resources.max_batch = batch;
    resources.model.reset();
    status = OpenModel(job, timeline, resources);
  }
  if (!status.ok()) return status;
  resources.model->Record(timeline);
  status = CheckLabels(*resources.train, *resources.model);
  if (resources.test != nullptr) status.Update(CheckLabels(*resources.test, *resources.model));
  if (!status.ok()) return status;
  if (job.init_from().empty()) return resources;
  absl::StatusOr<InitialWeights> initial = LoadInitialWeights(DataPath(job_folder, job.init_from()), *resources.model);
  if (!initial.ok()) return initial.status();
  resources.initial = *std::move(initial);
  return resources;
}

}  // namespace ballast
