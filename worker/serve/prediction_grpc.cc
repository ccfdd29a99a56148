// SPDX-License-Identifier: Apache-2.0
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "ballast/v1/prediction_service.grpc.pb.h"
#include "common/rpc/grpc_status.h"
#include "worker/data/datasets/table_schema.h"
#include "worker/serve/prediction_api.h"

namespace ballast {
namespace {

void SetAge(const ModelState& state, v1::ModelAge& age) {
  age.set_updates(state.updates);
  age.set_seconds(std::max(0.0, absl::ToDoubleSeconds(absl::Now() - state.read)));
}

// Adds the bags of all fields, example by example.
absl::Status TakeFields(const v1::PreparedExamples& from, absl::Span<const std::string> names, IdBags& bags) {
  if (from.fields_size() != static_cast<int>(names.size())) {
    return absl::InvalidArgumentError(absl::StrCat("examples.fields: got ", from.fields_size(), ", want ", names.size(),
                                                   ": ", absl::StrJoin(names, ", ")));
  }
  for (size_t i = 0; i < names.size(); ++i) {
    const v1::IdField& field = from.fields(i);
    const bool each_one = field.ends().empty();
    const bool fits = each_one ? field.ids_size() == static_cast<int>(from.count())
                               : field.ends_size() == static_cast<int>(from.count()) &&
                                     std::is_sorted(field.ends().begin(), field.ends().end()) &&
                                     field.ends(field.ends_size() - 1) == static_cast<uint32_t>(field.ids_size());
    if (!fits) {
      return absl::InvalidArgumentError(absl::StrCat("examples.fields of ", names[i], ": got ", field.ids_size(),
                                                     " ids and ", field.ends_size(), " ends, want one end for each of ",
                                                     from.count(), " examples, ascending to the number of ids"));
    }
  }
  for (uint32_t example = 0; example < from.count(); ++example) {
    for (const v1::IdField& field : from.fields()) {
      const uint32_t begin = field.ends().empty() ? example : example == 0 ? 0 : field.ends(example - 1);
      const uint32_t end = field.ends().empty() ? example + 1 : field.ends(example);
      bags.ids.insert(bags.ids.end(), field.ids().begin() + begin, field.ids().begin() + end);
      bags.ends.push_back(static_cast<uint32_t>(bags.ids.size()));
    }
  }
  return absl::OkStatus();
}

// Names the first feature that is not finite.
absl::Status CheckFinite(const Examples& examples, uint64_t features) {
  const auto found =
      std::find_if(examples.features.begin(), examples.features.end(), [](float x) { return !std::isfinite(x); });
  if (found == examples.features.end()) return absl::OkStatus();
  const uint64_t at = found - examples.features.begin();
  return absl::InvalidArgumentError(absl::StrCat("examples.features: got ", *found, " as feature ", at % features,
                                                 " of example ", at / features, ", want a finite number"));
}

absl::StatusOr<Examples> TakePrepared(const v1::PreparedExamples& from, const ModelDescription& description) {
  if (from.count() == 0 || from.count() > ExampleReader::kMaxExamples) {
    return absl::InvalidArgumentError(
        absl::StrCat("examples.count: got ", from.count(), ", want 1 to ", ExampleReader::kMaxExamples));
  }
  const uint64_t want = uint64_t{from.count()} * description.features * sizeof(float);
  if (from.features().size() != want) {
    return absl::InvalidArgumentError(absl::StrCat("examples.features: got ", from.features().size(), " bytes, want ",
                                                   want, " for ", from.count(), " examples of ", description.features,
                                                   " features"));
  }
  Examples examples{.count = from.count()};
  examples.features.resize(want / sizeof(float));
  if (want > 0) std::memcpy(examples.features.data(), from.features().data(), want);
  if (absl::Status status = CheckFinite(examples, description.features); !status.ok()) return status;
  if (absl::Status status = TakeFields(from, description.id_fields, examples.ids); !status.ok()) return status;
  return examples;
}

absl::StatusOr<Examples> TakeExamples(const v1::PredictRequest& request, const ServedModel& model) {
  if (request.has_examples() == !request.lines().empty()) {
    return absl::InvalidArgumentError(absl::StrCat("got ", request.lines_size(), " lines and ",
                                                   request.has_examples() ? "" : "no ",
                                                   "examples, want either lines or examples"));
  }
  if (request.has_examples()) return TakePrepared(request.examples(), model.description());
  return model.reader().ReadLines(request.lines());
}

class PredictionService : public v1::PredictionService::Service {
 public:
  explicit PredictionService(PredictionSource source) : source_(std::move(source)) {}

  grpc::Status Predict(grpc::ServerContext*, const v1::PredictRequest* request,
                       v1::PredictResponse* response) override {
    return ToGrpcStatus(Predict(*request, *response));
  }

  grpc::Status GetModel(grpc::ServerContext*, const v1::GetModelRequest* request,
                        v1::GetModelResponse* response) override {
    if (absl::Status status = CheckName(request->model()); !status.ok()) return ToGrpcStatus(status);
    const ModelDescription& description = source_.model->description();
    const ModelState state = source_.model->state();
    response->set_model(description.job);
    response->set_format(source_.model->reader().format());
    response->set_features(description.features);
    response->mutable_id_fields()->Add(description.id_fields.begin(), description.id_fields.end());
    response->mutable_classes()->Add(source_.model->classes().begin(), source_.model->classes().end());
    response->set_ready(state.ready);
    response->set_follows(source_.following != nullptr);
    if (source_.following != nullptr) response->set_error(std::string(source_.following().message()));
    if (state.ready) SetAge(state, *response->mutable_age());
    response->set_rows(state.rows);
    return grpc::Status::OK;
  }

 private:
  absl::Status CheckName(const std::string& name) const {
    const std::string& served = source_.model->description().job;
    if (name.empty() || name == served) return absl::OkStatus();
    return absl::NotFoundError(absl::StrCat("got model ", QuotedText(name), ", want ", QuotedText(served)));
  }

  absl::Status Predict(const v1::PredictRequest& request, v1::PredictResponse& response) {
    if (absl::Status status = CheckName(request.model()); !status.ok()) return status;
    const absl::StatusOr<Examples> examples = TakeExamples(request, *source_.model);
    if (!examples.ok()) return examples.status();
    const absl::StatusOr<Prediction> prediction = source_.model->Predict(*examples);
    if (!prediction.ok()) return prediction.status();
    response.set_outputs(prediction->outputs);
    response.mutable_values()->Add(prediction->values.begin(), prediction->values.end());
    if (prediction->outputs > 1) {
      response.mutable_classes()->Add(source_.model->classes().begin(), source_.model->classes().end());
    }
    SetAge(source_.model->state(), *response.mutable_age());
    return absl::OkStatus();
  }

  const PredictionSource source_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakePredictionService(const PredictionSource& source) {
  return std::make_unique<PredictionService>(source);
}

}  // namespace ballast
