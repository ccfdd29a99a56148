// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/impl/service_type.h>

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "common/http/http_server.h"
#include "worker/serve/served_model.h"

namespace ballast {

// Model that both interfaces serve, and how it follows its job.
struct PredictionSource {
  // Must outlive the interface.
  ServedModel* model = nullptr;
  // Returns why the values of the job do not arrive, or OK; null if the model follows no job.
  std::function<absl::Status()> following;
};

// Answers a request of the JSON interface:
//   POST /v1/models/NAME:predict {"instances": [...]} -> {"predictions": [...]}, as of TensorFlow Serving and KServe
//   GET /v1/models/NAME and GET /v1/models
//   GET /healthz, and GET /readyz, which is 503 until the model has all its values
HttpResponse AnswerPrediction(const PredictionSource& source, const HttpRequest& request);

// Makes the gRPC service: see prediction_service.proto.
std::unique_ptr<grpc::Service> MakePredictionService(const PredictionSource& source);

}  // namespace ballast
