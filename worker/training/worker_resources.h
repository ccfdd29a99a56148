// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "ballast/v1/job.pb.h"
#include "common/trace/timeline_recorder.h"
#include "worker/data/datasets/dataset.h"
#include "worker/data/datasets/stream_reader.h"
#include "worker/device/factory/worker_devices.h"
#include "worker/model/trainable_model.h"
#include "worker/training/device_codec.h"
#include "worker/training/initial_weights.h"

namespace ballast {

// Owns the parts of a worker that exist before any network call: devices, data sets, and a model with its codec. They
// fit each other: the model accepts the features and labels of all examples. Knows neither coordinator nor servers.
// Thread safety: none.
struct WorkerResources {
  WorkerDevices devices;
  std::unique_ptr<Dataset> train;
  // Null if the job has no test data.
  std::unique_ptr<Dataset> test;
  // Set if the training data are a stream; `train` then has only their features, fields and schema.
  std::unique_ptr<StreamReader> stream;
  // Examples of an epoch.
  uint64_t train_examples = 0;
  std::unique_ptr<TrainableModel> model;
  std::unique_ptr<DeviceCodec> codec;
  // Set if the job has init_from; the model then has these weights.
  std::optional<InitialWeights> initial;
  // Most examples that the model takes in one batch.
  int64_t max_batch = 0;
};

// INVALID_ARGUMENT names the file and the position of a label that the model refuses, or the classes of a table if the
// model has another number of outputs.
absl::Status CheckLabels(const Dataset& data, const TrainableModel& model);

// Says what to do about quantities so large that they would be learned slowly; empty if there are none.
std::string LabelAdvice(const Dataset& data, const TrainableModel& model);

// `job` is validated; relative paths in it are relative to `job_folder`. Opens the devices of `request` plus those that
// the job's layers name. The model records on `timeline`, which may be null. INVALID_ARGUMENT for errors in the job or
// its data; other errors as for WorkerDevices::Open and Model::Create.
absl::StatusOr<WorkerResources> OpenWorkerResources(const v1::Job& job, const std::string& job_folder,
                                                    WorkerDevices::Request request, TimelineRecorder* timeline);

}  // namespace ballast
