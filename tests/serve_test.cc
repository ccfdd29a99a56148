// SPDX-License-Identifier: Apache-2.0
// `ballast serve` by the real programs: a saved model, and one that follows the job that trains it.
#include "tests/testing/serve_test.h"

#include <cmath>

#include "absl/time/clock.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr absl::Duration kTimeout = absl::Seconds(60);

TEST_F(ServeTest, ASavedModelPredictsAsTheCommandDoes) {
  WriteJob();
  Train({});
  Serve({Path("run")});
  EXPECT_EQ(served_["model"], "blobs");
  EXPECT_EQ(served_["follows"], false);
  EXPECT_EQ(Ask("GET", "/healthz")["healthy"], true);
  EXPECT_EQ(Ask("GET", "/readyz")["ready"], true);

  const json lists = {{1, 0.5, 0, 0.25}, {0, 0, 2, 0}};
  const json got = Predictions("blobs", lists);
  Write("two.csv", "1,0.5,0,0.25\n0,0,2,0\n");
  std::vector<std::string> lines =
      absl::StrSplit(Run({"predict", Path("run"), "--data", Path("two.csv"), "--json"}), '\n', absl::SkipEmpty());
  ASSERT_THAT(lines, SizeIs(2));
  ASSERT_THAT(got, SizeIs(2));
  for (int i = 0; i < 2; ++i) {
    const json want = json::parse(lines[i]);
    for (int k = 0; k < 3; ++k) {
      EXPECT_NEAR(got[i][k].get<double>(), want["probabilities"][absl::StrCat(k)].get<double>(), 1e-6) << lines[i];
    }
  }

  const json model = Ask("GET", "/v1/models/blobs");
  EXPECT_EQ(model["format"], "csv");
  EXPECT_EQ(model["classes"], json({"0", "1", "2"}));
  EXPECT_THAT(AskHttp(http_, "GET", "/v1/models/other"), HasSubstr("got model \\\"other\\\", want \\\"blobs\\\""));
  EXPECT_THAT(AskHttp(http_, "GET", "/v1/models/blobs:predict"), StartsWith("HTTP/1.1 405"));
  EXPECT_THAT(AskHttp(http_, "GET", "/"), StartsWith("HTTP/1.1 404"));
  for (const auto& [body, error] :
       std::vector<std::pair<std::string, std::string>>{{"", "body: "},
                                                        {"[]", "body: "},
                                                        {"{}", "body: got no \\\"instances\\\""},
                                                        {R"({"instances": [[1, 2]]})", "has 2 columns, want 5"},
                                                        {R"({"instances": [[1, 2, 3, "x"]]})", "want a number"}}) {
    const std::string answer = AskHttp(http_, "POST", "/v1/models/blobs:predict", body);
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 400 Bad Request\r\n")) << body;
    EXPECT_THAT(answer, HasSubstr(error)) << body;
  }

  v1::PredictRequest request;
  request.add_lines("1,0.5,0,0.25");
  v1::PredictResponse response;
  grpc::ClientContext context;
  ASSERT_TRUE(stub_->Predict(&context, request, &response).ok());
  EXPECT_EQ(response.outputs(), 3);
  EXPECT_THAT(response.classes(), ElementsAre("0", "1", "2"));
  for (int k = 0; k < 3; ++k) EXPECT_NEAR(response.values(k), got[0][k].get<double>(), 1e-6);
  request.mutable_examples()->set_count(1);
  grpc::ClientContext again;
  const grpc::Status both = stub_->Predict(&again, request, &response);
  EXPECT_EQ(both.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << both.error_message();
}

TEST_F(ServeTest, ASavedModelWithTablesPredictsAsItWasEvaluated) {
  WriteClickJob(/*epochs=*/1);
  const auto trained = Train({"--servers", "2", "--workers", "2"});
  const std::vector<std::string> clicks = WriteClicks(2000);
  const auto result = json::parse(Run({"eval", Path("run"), "--data", Path("clicks/test.tsv"), "--json"}));
  EXPECT_GT(result["auc"], 0.55);
  EXPECT_EQ(result["examples"], 2000);
  EXPECT_EQ(std::filesystem::exists(Path("run/tables/ids/manifest.json")), true);

  Serve({Path("run")});
  const json model = Ask("GET", "/v1/models/clicks");
  EXPECT_EQ(model["rows"], trained["rows"]);
  EXPECT_THAT(model["id_fields"], SizeIs(26));
  const json got = Predictions("clicks", std::vector<std::string>(clicks.begin(), clicks.begin() + 1000));
  const std::vector<std::string> lines = absl::StrSplit(
      Run({"predict", Path("run"), "--data", Path("clicks/test.tsv"), "--json"}), '\n', absl::SkipEmpty());
  ASSERT_THAT(lines, SizeIs(2000));
  double loss = 0;
  for (int i = 0; i < 1000; ++i) {
    const double p = got[i].get<double>();
    ASSERT_NEAR(p, json::parse(lines[i])["probabilities"]["1"].get<double>(), 1e-6) << i;
    loss -= std::log(clicks[i][0] == '1' ? p : 1 - p) / 1000;
  }
  EXPECT_NEAR(loss, result["loss"].get<double>(), 0.05) << "half of the examples";
}

TEST_F(ServeTest, AModelFollowsTheJobThatTrainsIt) {
  WriteClickJob(/*epochs=*/100000);
  ChildProcess launch = Launch({"--servers", "2", "--workers", "2", "--durability", "wal"});
  ASSERT_TRUE(launch.AwaitOutput("test loss")) << launch.output();
  const std::vector<std::string> clicks = WriteClicks(200);
  Serve({Path("run")});
  EXPECT_EQ(served_["follows"], true);
  const json first = Predictions("clicks", clicks);
  const absl::Time deadline = absl::Now() + kTimeout;
  json later = first;
  while (later == first && absl::Now() < deadline) later = Predictions("clicks", clicks);
  EXPECT_NE(later, first) << "training changes the model";
  const json model = Ask("GET", "/v1/models/clicks");
  EXPECT_GT(model["rows"], 100);
  EXPECT_FALSE(model.contains("error")) << model;

  launch.Signal(SIGTERM);
  EXPECT_EQ(launch.Wait().ToString(), "ended with status 130") << launch.output();
  const json last = Predictions("clicks", clicks);
  EXPECT_THAT(last, SizeIs(200)) << "the newest values stay when the job ends";
  serve_->Signal(SIGTERM);
  EXPECT_EQ(serve_->Wait().ToString(), "ended with status 0") << serve_->output();
}

TEST_F(ServeTest, RefusesWhatItCannotServe) {
  const auto error = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {Binary("cli/ballast"), "serve"});
    ChildProcess serve(words);
    EXPECT_EQ(serve.Wait().ToString(), "ended with status 2") << serve.output();
    return serve.output();
  };
  EXPECT_THAT(error({}), HasSubstr("serve: got 0 models, want exactly one"));
  EXPECT_THAT(error({Path("none")}), HasSubstr(Path("none")));
  EXPECT_THAT(error({Path("none"), "--http", "0.0.0.0:0"}),
              HasSubstr("flag --http: got 0.0.0.0:0, want an address of"));
  EXPECT_THAT(error({Path("none"), "--refresh", "1"}), HasSubstr("refresh_ms"));
}

}  // namespace
}  // namespace ballast
