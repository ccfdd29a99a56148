// SPDX-License-Identifier: Apache-2.0
// Both interfaces to a served model, without sockets.
#include "worker/serve/prediction_api.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <grpcpp/grpcpp.h>

#include <cmath>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "ballast/v1/prediction_service.grpc.pb.h"
#include "common/tables/table_spec_fixture.h"

namespace ballast {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::FloatEq;
using ::testing::HasSubstr;

// One output, the sum of three features and a bias of 0.5.
constexpr char kNumbers[] = R"(name: "numbers"
  data { train { libsvm { features: 3 } } }
  model { layers { dense { units: 1 } } loss { mean_squared_error {} } })";
// Clicks on ids of two fields, "0" and "1", with one table of vectors of one weight. The logit is their sum plus 0.5.
constexpr char kClicks[] = R"(name: "clicks"
  data { train { libffm { fields: 2 } } }
  model { tables { name: "t" dim: 1 } layers { embedding { table: "t" } } layers { dense { units: 1 } }
          loss { sigmoid_cross_entropy {} } })";

class PredictionApiTest : public ::testing::Test {
 protected:
  // Serves a model whose weights are 1 and whose bias is 0.5.
  void Serve(const std::string& job_text, int64_t features, const std::vector<std::string>& id_fields = {},
             bool complete = true) {
    v1::Job job;
    ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(job_text, &job)) << job_text;
    std::vector<v1::TableSpec> tables;
    for (const v1::EmbeddingTable& table : job.model().tables()) {
      tables.push_back(SgdTable(static_cast<uint32_t>(tables.size()), table.name(), table.dim()));
    }
    auto made = SavedModel::Make(DescribeModel(job, features, "", id_fields), tables, {.device = "cpu"});
    ASSERT_TRUE(made.ok()) << made.status();
    auto served = ServedModel::Create(*std::move(made), complete);
    ASSERT_TRUE(served.ok()) << served.status();
    model_ = *std::move(served);
    if (complete) SetWeights(1);
    source_.model = model_.get();
    service_ = MakePredictionService(source_);
    grpc::ServerBuilder builder;
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
    stub_ = v1::PredictionService::NewStub(server_->InProcessChannel({}));
  }
  void ServeNumbers() { Serve(kNumbers, 3); }
  void ServeClicks() { Serve(kClicks, 0, {"0", "1"}); }

  void SetWeights(float weight) {
    std::vector<std::vector<float>> values;
    for (const Parameter& parameter : model_->parameters()) {
      const bool is_bias = parameter.shape.size() == 1;
      values.emplace_back(parameter.elements, is_bias ? 0.5f : weight);
    }
    ASSERT_EQ(model_->SetParameters(values, absl::Now()), absl::OkStatus());
  }
  void SetRow(uint64_t id, float value) { model_->tables()[0].rows->Set(id, {&value, 1}); }

  HttpResponse Http(const std::string& method, const std::string& path, const std::string& body = "") const {
    return AnswerPrediction(source_, {.method = method, .path = path, .body = body});
  }
  HttpResponse Predict(const std::string& body) const {
    return Http("POST", absl::StrCat("/v1/models/", model_->description().job, ":predict"), body);
  }
  json Predictions(const std::string& instances) const {
    const HttpResponse response = Predict(absl::StrCat("{\"instances\":", instances, "}"));
    EXPECT_EQ(response.status, 200) << response.body;
    return json::parse(response.body, nullptr, false)["predictions"];
  }
  // Returns the error of a request, which must have that status.
  std::string Error(const std::string& body, int status = 400) const {
    const HttpResponse response = Predict(body);
    EXPECT_EQ(response.status, status) << response.body.substr(0, 300);
    EXPECT_EQ(response.content_type, "application/json");
    const json error = json::parse(response.body, nullptr, false);
    EXPECT_TRUE(error.is_object() && error["error"].is_string()) << response.body.substr(0, 300);
    return error.value("error", "");
  }

  grpc::Status Call(const std::string& request_text, v1::PredictResponse* response = nullptr) {
    v1::PredictRequest request;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(request_text, &request)) << request_text;
    return Call(request, response);
  }
  grpc::Status Call(const v1::PredictRequest& request, v1::PredictResponse* response = nullptr) {
    v1::PredictResponse ignored;
    grpc::ClientContext context;
    return stub_->Predict(&context, request, response == nullptr ? &ignored : response);
  }
  // Expects INVALID_ARGUMENT with this text.
  void ExpectRefused(const std::string& request, const std::string& message) {
    const grpc::Status status = Call(request);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << request;
    EXPECT_THAT(status.error_message(), HasSubstr(message)) << request;
  }

  // Prepared examples of numbers, with these features.
  static v1::PredictRequest Prepared(uint32_t count, const std::vector<float>& features) {
    v1::PredictRequest request;
    request.mutable_examples()->set_count(count);
    request.mutable_examples()->set_features(reinterpret_cast<const char*>(features.data()),
                                             features.size() * sizeof(float));
    return request;
  }

  std::unique_ptr<ServedModel> model_;
  PredictionSource source_;
  std::unique_ptr<grpc::Service> service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::PredictionService::Stub> stub_;
};

TEST_F(PredictionApiTest, BothInterfacesPredictAlike) {
  ServeNumbers();
  EXPECT_EQ(Predictions(R"(["1:1 3:2", "7 2:-1"])"), (json{3.5, -0.5}));
  EXPECT_EQ(Predictions("[[1, 0, 2], [0, -1, 0]]"), (json{3.5, -0.5}));
  v1::PredictResponse response;
  ASSERT_TRUE(Call(R"(lines: "1:1 3:2" lines: "2:-1")", &response).ok());
  EXPECT_THAT(response.values(), ElementsAre(3.5f, -0.5f));
  ASSERT_TRUE(Call(Prepared(2, {1, 0, 2, 0, -1, 0}), &response).ok());
  EXPECT_THAT(response.values(), ElementsAre(3.5f, -0.5f));
  EXPECT_EQ(response.outputs(), 1);
}

TEST_F(PredictionApiTest, AnEmptyBagHasTheValueZero) {
  ServeClicks();
  const float empty = 1 / (1 + std::exp(-0.5f)), two = 1 / (1 + std::exp(-2.75f));
  SetRow(7, 2);
  SetRow(8, 0.25f);
  v1::PredictResponse response;
  ASSERT_TRUE(
      Call("examples { count: 2 fields { ends: [0, 0] } fields { ids: [7, 8] ends: [0, 2] } }", &response).ok());
  EXPECT_THAT(response.values(), ElementsAre(FloatEq(empty), FloatEq(two)));
  const json line = Predictions(R"(["1", "0"])");
  EXPECT_NEAR(line[0].get<double>(), empty, 1e-6);
  EXPECT_EQ(line[0], line[1]);
}

TEST_F(PredictionApiTest, RefusesBodiesThatAreNoRequest) {
  ServeNumbers();
  EXPECT_THAT(Error(""), HasSubstr("body: not JSON: at line 1, column 1"));
  EXPECT_THAT(Error("{\"instances\": [[1, 2, 3]"), HasSubstr("body: not JSON: at line 1, column 25: "));
  EXPECT_EQ(Error("{\"instances\": [[1, 1e999, 3]]}"), "body: not JSON: number overflow parsing '1e999'");
  EXPECT_THAT(Error("{\"instances\": [[1, NaN, 3]]}"), HasSubstr("body: not JSON: at line 1, column 20"));
  EXPECT_THAT(Error("{\"instances\": [\"\xff\"]}"), HasSubstr("ill-formed UTF-8"));
  EXPECT_EQ(Error("[]"), "body: got array, want {\"instances\": [...]}");
  EXPECT_EQ(Error("7"), "body: got number, want {\"instances\": [...]}");
  EXPECT_EQ(Error("{}"), "body: got no \"instances\", want {\"instances\": [...]}");
  EXPECT_EQ(Error("{\"instances\": {}}"), "got no list of examples, want a list of at least one");
  EXPECT_EQ(Error("{\"instances\": []}"), "got no list of examples, want a list of at least one");
  EXPECT_EQ(Error("{\"instances\": [null]}"), "example 0: got null, want a text, an object or a list");
  EXPECT_EQ(Error("{\"instances\": [[1, 2, 3], 7]}"), "example 1: got number, want a list");
  EXPECT_EQ(Error("{\"instances\": [[1, 2]]}"), "example 0: got 2 features, want 3");
  EXPECT_EQ(Error("{\"instances\": [[1, 2, 1e39]]}"), "example 0: got 1e+39 as feature 2, want a finite number");
  EXPECT_EQ(Error("{\"instances\": [[1, 2, [3]]]}"), "example 0: got [3] as feature 2, want a finite number");
  EXPECT_THAT(Error("{\"instances\": [\"1:1 2:nan\"]}"), HasSubstr("example 0: the value of index 2 is \"nan\""));
  EXPECT_THAT(Error("{\"instances\": [\"1:1 4:1\"]}"), HasSubstr("index 4 is out of range, want 1 to 3"));
  EXPECT_EQ(Error("{\"instances\": [{\"a\": 1}]}"),
            "got objects, want texts or lists: the model was not trained from CSV with column names");
}

TEST_F(PredictionApiTest, DeepNestingAndManyKeysEndQuickly) {
  ServeNumbers();
  const std::string deep(2'000'000, '[');
  EXPECT_EQ(Error(deep), "body: JSON is nested more than 64 deep, want at most that");
  EXPECT_EQ(Error(absl::StrCat("{\"instances\": [[1, 2, ", deep, std::string(deep.size(), ']'), "]]}")),
            "body: JSON is nested more than 64 deep, want at most that");
  std::vector<std::string> keys;
  for (int i = 0; i < 300'000; ++i) keys.push_back(absl::StrCat("\"k", i, "\":0"));
  EXPECT_EQ(Error(absl::StrCat("{", absl::StrJoin(keys, ","), "}")),
            "body: got no \"instances\", want {\"instances\": [...]}");
  const std::string text(1'000'000, 'x');
  EXPECT_LT(Error(absl::StrCat("{\"instances\": [[1, 2, \"", text, "\"]]}")).size(), 300);
  EXPECT_LT(Error(absl::StrCat("{\"instances\": [\"1:", text, "\"]}")).size(), 300);
  EXPECT_LT(Http("GET", absl::StrCat("/v1/models/", text)).body.size(), 300);
}

// 100,000 lines of 3 bytes would otherwise stand for 20 GB of features.
TEST_F(PredictionApiTest, ShortLinesForManyFeaturesAreLimited) {
  Serve(R"(name: "wide" data { train { libsvm { features: 50000 } } }
           model { layers { dense { units: 1 } } loss { mean_squared_error {} } })",
        50000);
  const auto instances = [](int count) { return json(std::vector<std::string>(count, "1:1")).dump(); };
  EXPECT_EQ(Predictions(instances(83)).size(), 83);
  EXPECT_EQ(Error(absl::StrCat("{\"instances\":", instances(84), "}")),
            "got 84 examples, want at most 83, because each has 50000 values");
  v1::PredictRequest request;
  for (int i = 0; i < 84; ++i) request.add_lines("1:1");
  const grpc::Status status = Call(request);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(), "got 84 examples, want at most 83, because each has 50000 values");
}

TEST_F(PredictionApiTest, ManyExamplesForManyOutputsAreLimited) {
  Serve(R"(name: "outputs" data { train { libsvm { features: 1 } } }
           model { layers { dense { units: 100000 } } loss { softmax_cross_entropy {} } })",
        1);
  EXPECT_EQ(Error(absl::StrCat("{\"instances\":", json(std::vector<std::string>(42, "1:1")).dump(), "}")),
            "got 42 examples, want at most 41, because the model has 100000 outputs for each");
}

TEST_F(PredictionApiTest, MoreExamplesThanARequestMayHaveAreRefused) {
  ServeNumbers();
  const std::string error = "got 65537 examples, want at most 65536";
  EXPECT_EQ(Error(absl::StrCat("{\"instances\":", json(std::vector<std::string>(65537, "1:1")).dump(), "}")), error);
  v1::PredictRequest request;
  for (int i = 0; i < 65537; ++i) request.add_lines("1:1");
  EXPECT_EQ(Call(request).error_message(), error);
  EXPECT_EQ(Predictions(json(std::vector<std::string>(65536, "1:1")).dump()).size(), 65536);
}

TEST_F(PredictionApiTest, OutputsThatAreNoNumbersAreErrors) {
  ServeNumbers();
  SetWeights(std::numeric_limits<float>::quiet_NaN());
  EXPECT_EQ(Error("{\"instances\": [\"1:1\"]}", 500),
            "example 0: the model's output is nan, want a finite number: its training has diverged, or a feature is "
            "too large");
  EXPECT_EQ(Call("lines: '1:1'").error_code(), grpc::StatusCode::INTERNAL);
  SetWeights(1e30f);
  EXPECT_THAT(Error("{\"instances\": [\"1:1\", \"2:1e30\"]}", 500), HasSubstr("example 1: the model's output is inf"));
  EXPECT_EQ(Predictions(R"(["3:0"])"), json{0.5});
}

TEST_F(PredictionApiTest, AModelThatHasNotAllItsValuesSaysSo) {
  Serve(kClicks, 0, {"0", "1"}, /*complete=*/false);
  EXPECT_EQ(Http("GET", "/healthz").status, 200);
  EXPECT_EQ(Http("GET", "/readyz").status, 503);
  EXPECT_THAT(Error("{\"instances\": [\"1\"]}", 503), HasSubstr("has not received all its values yet"));
  EXPECT_EQ(Call("lines: '1'").error_code(), grpc::StatusCode::UNAVAILABLE);
  SetWeights(1);
  EXPECT_EQ(Http("GET", "/readyz").status, 503) << "the rows are missing";
  model_->SetRowsComplete();
  EXPECT_EQ(Http("GET", "/readyz").status, 200);
  EXPECT_EQ(Predict("{\"instances\": [\"1\"]}").status, 200);
}

TEST_F(PredictionApiTest, OtherPathsAndMethodsAreErrors) {
  ServeNumbers();
  for (const char* path : {"/", "/v1", "/v1/model/numbers", "/v1/modelsnumbers", "/healthz/", "/../etc/passwd"}) {
    const HttpResponse response = Http("GET", path);
    EXPECT_EQ(response.status, 404) << path;
    EXPECT_THAT(response.body, HasSubstr("want /v1/models/numbers:predict, /v1/models, /healthz or /readyz")) << path;
  }
  for (const char* path : {"/v1/models/", "/v1/models/other", "/v1/models/numbers/", "/v1/models/numbers:classify",
                           "/v1/models/other:predict"}) {
    const HttpResponse response = Http("GET", path);
    EXPECT_EQ(response.status, 404) << path;
    EXPECT_THAT(response.body, HasSubstr("want \\\"numbers\\\"")) << path;
  }
  for (const char* path : {"/v1/models", "/v1/models/numbers", "/healthz", "/readyz"}) {
    EXPECT_EQ(Http("GET", path).status, 200) << path;
    for (const char* method : {"POST", "PUT", "DELETE", "BREW"}) {
      const HttpResponse response = Http(method, path);
      EXPECT_EQ(response.status, 405) << method << " " << path;
      EXPECT_THAT(response.headers, ElementsAre(testing::Pair("Allow", "GET")));
    }
  }
  EXPECT_EQ(Http("GET", "/v1/models/numbers:predict").status, 405);
  EXPECT_EQ(Http("DELETE", "/v1/models/numbers:predict").status, 405);
}

TEST_F(PredictionApiTest, PreparedExamplesOfAnotherSizeAreRefused) {
  ServeNumbers();
  ExpectRefused("", "got 0 lines and no examples, want either lines or examples");
  ExpectRefused("lines: '1:1' examples { count: 1 }", "got 1 lines and examples, want either lines or examples");
  ExpectRefused("examples {}", "examples.count: got 0, want 1 to 65536");
  ExpectRefused("examples { count: 65537 }", "examples.count: got 65537, want 1 to 65536");
  ExpectRefused("examples { count: 4294967295 }", "examples.count: got 4294967295, want 1 to 65536");
  ExpectRefused("examples { count: 1 }", "examples.features: got 0 bytes, want 12 for 1 examples of 3 features");
  ExpectRefused("examples { count: 1 features: '12345678901' }", "got 11 bytes, want 12");
  ExpectRefused("examples { count: 1 features: '123456789012' fields {} }", "examples.fields: got 1, want 0");
  ExpectRefused("lines: ''", "example 0: got an empty text, want one line");
  ExpectRefused("lines: '1:1\\n2:1'", "example 0: got a line break, want one line");
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    const grpc::Status status = Call(Prepared(2, {1, 2, 3, 4, bad, 6}));
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr("as feature 1 of example 1, want a finite number"));
  }
  v1::PredictRequest other = Prepared(1, {1, 2, 3});
  other.set_model(std::string(100'000, 'x'));
  const grpc::Status status = Call(other);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(status.error_message(), HasSubstr("want \"numbers\""));
}

TEST_F(PredictionApiTest, PreparedBagsThatDoNotFitAreRefused) {
  ServeClicks();
  ExpectRefused("examples { count: 1 }", "examples.fields: got 0, want 2: 0, 1");
  ExpectRefused("examples { count: 1 fields {} fields {} fields {} }", "examples.fields: got 3, want 2: 0, 1");
  const std::string want = "want one end for each of 2 examples, ascending to the number of ids";
  for (const char* field : {"", "ids: 7", "ids: [1, 2, 3]", "ends: 0", "ids: [1, 2] ends: 2",
                            "ids: [1, 2] ends: [2, 1]", "ids: [1, 2] ends: [1, 1]", "ids: [1, 2] ends: [1, 3]",
                            "ids: [1, 2] ends: [1, 2, 2]", "ids: [1, 2] ends: [4294967295, 2]"}) {
    ExpectRefused(absl::StrCat("examples { count: 2 fields { ids: [1, 2] } fields { ", field, " } }"),
                  absl::StrCat("examples.fields of 1: got "));
    ExpectRefused(absl::StrCat("examples { count: 2 fields { ids: [1, 2] } fields { ", field, " } }"), want);
  }
}

TEST_F(PredictionApiTest, AModelWhoseStatisticsServersLackCannotFollow) {
  v1::Job job;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(R"(name: "n" data { train { libsvm { features: 3 } } }
      model { layers { batch_norm {} } layers { dense { units: 1 } } loss { mean_squared_error {} } })",
                                                            &job));
  auto made = SavedModel::Make(DescribeModel(job, 3, ""), {}, {.device = "cpu"});
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(ServedModel::Create(*std::move(made), /*complete=*/false).status(),
            absl::InvalidArgumentError("the model has \"batch_norm1/running_mean\", which its servers lack, want a "
                                       "model without batch_norm while the job trains, or the run after its end"));
}

}  // namespace
}  // namespace ballast
