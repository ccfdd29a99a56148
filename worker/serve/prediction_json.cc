// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/text/json_fields.h"
#include "worker/data/datasets/table_schema.h"
#include "worker/serve/prediction_api.h"

namespace ballast {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kModels[] = "/v1/models";

HttpResponse Answer(int status, const Json& body) {
  return {.status = status, .content_type = "application/json", .body = absl::StrCat(JsonLine(body), "\n")};
}

HttpResponse Failure(int status, absl::string_view message) {
  return Answer(status, {{"error", std::string(message)}});
}

HttpResponse Failure(const absl::Status& status) {
  if (absl::IsUnavailable(status)) return Failure(503, status.message());
  return Failure(absl::IsInvalidArgument(status) ? 400 : 500, status.message());
}

HttpResponse WrongMethod(const char* want) {
  HttpResponse response = Failure(405, absl::StrCat("want ", want));
  response.headers.emplace_back("Allow", want);
  return response;
}

Json Age(const ModelState& state) {
  return {{"updates", state.updates}, {"seconds", std::max(0.0, absl::ToDoubleSeconds(absl::Now() - state.read))}};
}

Json Describe(const PredictionSource& source) {
  const ModelState state = source.model->state();
  const ModelDescription& description = source.model->description();
  Json json = {{"name", description.job}, {"ready", state.ready}, {"follows", source.following != nullptr}};
  const absl::Status following = source.following == nullptr ? absl::OkStatus() : source.following();
  if (!following.ok()) json["error"] = std::string(following.message());
  if (state.ready) json["age"] = Age(state);
  json["format"] = source.model->reader().format();
  json["features"] = description.features;
  if (!description.id_fields.empty()) {
    json["id_fields"] = description.id_fields;
    json["rows"] = state.rows;
  }
  if (!source.model->classes().empty()) json["classes"] = source.model->classes();
  return json;
}

// Returns a number for one value of an example, otherwise a list.
Json Predictions(const Prediction& prediction) {
  Json list = Json::array();
  const double* value = prediction.values.data();
  for (uint64_t i = 0; i < prediction.examples; ++i, value += prediction.outputs) {
    if (prediction.outputs == 1) {
      list.push_back(*value);
    } else {
      list.push_back(std::vector<double>(value, value + prediction.outputs));
    }
  }
  return list;
}

HttpResponse Predict(const PredictionSource& source, const HttpRequest& request) {
  if (absl::Status status = CheckJson(request.body); !status.ok()) {
    return Failure(400, absl::StrCat("body: ", status.message()));
  }
  // Not ParseJsonObject, because a caller may send an object with any number of keys.
  const nlohmann::json body = nlohmann::json::parse(request.body, nullptr, /*allow_exceptions=*/false);
  const auto instances = body.find("instances");
  if (instances == body.end()) {
    return Failure(400, absl::StrCat("body: got ", body.is_object() ? "no \"instances\"" : body.type_name(),
                                     ", want {\"instances\": [...]}"));
  }
  const absl::StatusOr<Examples> examples = source.model->reader().ReadJson(*instances);
  if (!examples.ok()) return Failure(examples.status());
  const absl::StatusOr<Prediction> prediction = source.model->Predict(*examples);
  if (!prediction.ok()) return Failure(prediction.status());
  Json json = {{"predictions", Predictions(*prediction)}, {"age", Age(source.model->state())}};
  if (prediction->outputs > 1 && !source.model->classes().empty()) json["classes"] = source.model->classes();
  return Answer(200, json);
}

HttpResponse AnswerModel(const PredictionSource& source, const HttpRequest& request, absl::string_view name) {
  const bool predicts = absl::ConsumeSuffix(&name, ":predict");
  const std::string& served = source.model->description().job;
  if (name != served) {
    return Failure(404, absl::StrCat("got model ", QuotedText(name), ", want ", QuotedText(served)));
  }
  if (predicts) return request.method == "POST" ? Predict(source, request) : WrongMethod("POST");
  return request.method == "GET" ? Answer(200, Describe(source)) : WrongMethod("GET");
}

}  // namespace

HttpResponse AnswerPrediction(const PredictionSource& source, const HttpRequest& request) {
  absl::string_view path = request.path;
  if (path == "/healthz" || path == "/readyz") {
    if (request.method != "GET") return WrongMethod("GET");
  }
  if (path == "/healthz") return Answer(200, {{"healthy", true}});
  if (path == "/readyz") {
    const bool ready = source.model->state().ready;
    return Answer(ready ? 200 : 503, {{"ready", ready}});
  }
  if (path == kModels) {
    return request.method == "GET" ? Answer(200, {{"models", {Describe(source)}}}) : WrongMethod("GET");
  }
  if (absl::ConsumePrefix(&path, kModels) && absl::ConsumePrefix(&path, "/")) {
    return AnswerModel(source, request, path);
  }
  return Failure(404, absl::StrCat("got path ", request.path, ", want ", kModels, "/", source.model->description().job,
                                   ":predict, ", kModels, ", /healthz or /readyz"));
}

}  // namespace ballast
