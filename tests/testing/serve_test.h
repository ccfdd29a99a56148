// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "ballast/v1/prediction_service.grpc.pb.h"
#include "common/http/testing/raw_http_client.h"
#include "gmock/gmock.h"
#include "tests/testing/job_test.h"

namespace ballast {

// Runs `ballast serve` and asks it.
class ServeTest : public JobTest {
 protected:
  using json = nlohmann::json;

  // Starts `ballast serve` and waits for its addresses.
  void Serve(std::vector<std::string> words) {
    words.insert(words.begin(), {Binary("cli/ballast"), "serve"});
    words.insert(words.end(), {"--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--device", "cpu", "--json"});
    serve_.emplace(words);
    ASSERT_TRUE(serve_->AwaitOutput("\"grpc\"")) << serve_->output();
    ASSERT_TRUE(serve_->AwaitOutput("\n"));
    served_ = json::parse(serve_->last_line(), nullptr, false);
    ASSERT_TRUE(served_.is_object()) << serve_->output();
    http_ = served_["http"];
    stub_ = v1::PredictionService::NewStub(
        grpc::CreateChannel(served_["grpc"].get<std::string>(), grpc::InsecureChannelCredentials()));
  }

  // Returns the body of a response with status 200.
  json Ask(absl::string_view method, const std::string& path, const std::string& body = "") const {
    const std::string answer = AskHttp(http_, method, path, body);
    EXPECT_THAT(answer, testing::StartsWith("HTTP/1.1 200 OK\r\n"));
    return json::parse(answer.substr(answer.find("\r\n\r\n") + 4), nullptr, false);
  }
  json Predictions(const std::string& model, const json& instances) const {
    return Ask("POST", absl::StrCat("/v1/models/", model, ":predict"),
               json{{"instances", instances}}.dump())["predictions"];
  }

  void WriteClickJob(int epochs) const {
    Write("job.textproto", absl::StrCat(R"(name: "clicks"
seed: 3
data {
  train { planted_clicks { rows: 20000 end: 19000 ids: 300 drift: 0 } }
  test { planted_clicks { rows: 20000 begin: 19000 ids: 300 drift: 0 } }
}
model {
  tables { name: "ids" dim: 8 optimizer { adagrad { learning_rate: 0.1 } } }
  layers { embedding { table: "ids" } }
  layers { dense { units: 16 } }
  layers { relu {} }
  layers { dense { units: 1 } }
  loss { sigmoid_cross_entropy {} }
}
training { batch_size: 128 epochs: )",
                                        epochs, R"( }
optimizer { adagrad { learning_rate: 0.02 } }
policy { async {} }
)"));
  }

  // Writes lines of clicks with the truth of the job's, and returns them.
  std::vector<std::string> WriteClicks(int rows) const {
    Run({"data", "ctr", Path("clicks"), "--rows", "100", "--test_rows", absl::StrCat(rows), "--ids", "300", "--drift",
         "0", "--seed", "3"});
    return absl::StrSplit(Read("clicks/test.tsv"), '\n', absl::SkipEmpty());
  }

  std::optional<ChildProcess> serve_;
  json served_;
  std::string http_;
  std::unique_ptr<v1::PredictionService::Stub> stub_;
};

}  // namespace ballast
