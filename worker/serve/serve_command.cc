// SPDX-License-Identifier: Apache-2.0
#include "worker/serve/serve_command.h"

#include <unistd.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/http/http_server.h"
#include "common/program/arguments.h"
#include "common/program/signal_watch.h"
#include "common/run/model_description.h"
#include "common/run/run_folder.h"
#include "common/security/security_options.h"
#include "common/text/json_fields.h"
#include "worker/predict/saved_model.h"
#include "worker/serve/grpc_port.h"
#include "worker/serve/model_follower.h"
#include "worker/serve/prediction_api.h"
#include "worker/serve/served_model.h"

namespace ballast {
namespace {

constexpr char kUsage[] =
    "usage: ballast serve RUN_OR_MODEL [flags]\n\n"
    "Answers predictions over HTTP (POST /v1/models/JOB:predict) and gRPC (ballast.v1.PredictionService).\n"
    "RUN is the directory of a launch: while its job trains, the model follows it, and an update is served within a\n"
    "second; after its end, the saved model is served. MODEL is a model.safetensors. SIGINT or SIGTERM ends it.\n\n";

constexpr int kMaxThreads = 1024;
constexpr int kMaxRefreshMs = 3'600'000;
constexpr int kMaxConnectSeconds = 86400;
// Limit on the answers in progress at the end.
constexpr absl::Duration kDrain = absl::Seconds(5);

const std::vector<FlagSpec>& Flags() {
  static const auto* flags = new std::vector<FlagSpec>{
      {"http", "HOST:PORT", "Address for HTTP; port 0 takes a free one (default: 127.0.0.1:7800)."},
      {"grpc", "HOST:PORT", "Address for gRPC; port 0 takes a free one (default: 127.0.0.1:7801)."},
      {"open", "", "Accept addresses that other machines reach. Predictions have neither TLS nor tokens."},
      {"refresh_ms", "MS", "Time between two reads of the dense tensors from the job (default: 250)."},
      {"connect_timeout", "S", "Seconds for the job to declare its model and send all values (default: 60)."},
      {"device", "auto|cpu|cuda", "Compute device (default: auto, a GPU if there is one)."},
      {"threads", "N", "Compute threads on the CPU (default: 1, because requests are small)."},
      {"http_threads", "N", "Threads that answer HTTP requests (default: 4)."},
      {"json", "", "Print the addresses as one JSON object."},
      {"coordinator", "HOST:PORT", "Address of the job's server 0 (default: found in RUN)."},
      {"tls_ca", "FILE", "PEM file of the CA certificates that signed the servers' certificates; turns TLS on."},
      {"tls_cert", "FILE", "PEM file of this process's certificate, for servers that require one."},
      {"tls_key", "FILE", "PEM file of the private key of --tls_cert."},
      {"token_file", "FILE", "File with a token of role reader, for servers that require one."},
      {"insecure", "", "Connect to servers on other machines without TLS."},
  };
  return *flags;
}

struct Request {
  // A run directory or a safetensors file.
  std::string model;
  std::string http;
  std::string grpc;
  int http_threads = 0;
  SavedModel::Options device;
  // Set if the model follows a job.
  std::optional<ModelFollower::Options> follow;
  bool json = false;
};

// Streams of the command. With --json, a failure is one JSON object on `out`, too.
struct Streams {
  std::ostream& out;
  std::ostream& err;
  bool json = false;
};

int Fail(const Streams& streams, const absl::Status& status, int exit_status) {
  streams.err << "error: " << status.message() << std::endl;
  if (streams.json) {
    streams.out << JsonLine({{"error", std::string(status.message())},
                             {"reason", absl::StatusCodeToString(status.code())},
                             {"exit_code", exit_status}})
                << std::endl;
  }
  return exit_status;
}

// Refuses an address that other machines reach, unless --open is given.
absl::StatusOr<std::string> ReadAddress(const Arguments& arguments, const char* flag, const char* otherwise) {
  const std::string address = arguments.Get(flag, otherwise);
  if (IsLoopback(address) || arguments.Has("open")) return address;
  return absl::InvalidArgumentError(absl::StrCat("flag --", flag, ": got ", address,
                                                 ", want an address of this machine only, such as ", otherwise,
                                                 ", or --open: predictions have neither TLS nor tokens"));
}

absl::StatusOr<ModelFollower::Options> ReadFollowing(const Arguments& arguments) {
  ModelFollower::Options options;
  options.coordinator = arguments.Get("coordinator", "");
  absl::StatusOr<Credentials> credentials =
      Credentials::Load({{arguments.Get("tls_cert", ""), arguments.Get("tls_key", ""), arguments.Get("tls_ca", "")},
                         arguments.Get("token_file", ""),
                         arguments.Has("insecure")});
  if (!credentials.ok()) return credentials.status();
  if (absl::Status status = credentials->CheckTarget(options.coordinator); !status.ok()) return status;
  options.credentials = *std::move(credentials);
  const absl::StatusOr<int> refresh = arguments.GetInt("refresh_ms", 250, 1, kMaxRefreshMs);
  if (!refresh.ok()) return refresh.status();
  options.refresh = absl::Milliseconds(*refresh);
  const absl::StatusOr<int> connect = arguments.GetInt("connect_timeout", 60, 1, kMaxConnectSeconds);
  if (!connect.ok()) return connect.status();
  options.connect_timeout = absl::Seconds(*connect);
  return options;
}

absl::StatusOr<Request> ReadRequest(const Arguments& arguments) {
  if (arguments.positional().size() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("serve: got ", arguments.positional().size(), " models, want exactly one; see --help"));
  }
  absl::StatusOr<std::string> http = ReadAddress(arguments, "http", "127.0.0.1:7800");
  if (!http.ok()) return http.status();
  absl::StatusOr<std::string> grpc = ReadAddress(arguments, "grpc", "127.0.0.1:7801");
  if (!grpc.ok()) return grpc.status();
  absl::StatusOr<std::string> device = arguments.GetChoice("device", "auto", {"auto", "cpu", "cuda"});
  if (!device.ok()) return device.status();
  const absl::StatusOr<int> threads = arguments.GetInt("threads", 1, 1, kMaxThreads);
  if (!threads.ok()) return threads.status();
  const absl::StatusOr<int> http_threads = arguments.GetInt("http_threads", 4, 1, kMaxThreads);
  if (!http_threads.ok()) return http_threads.status();
  Request request{.model = arguments.positional()[0],
                  .http = *std::move(http),
                  .grpc = *std::move(grpc),
                  .http_threads = *http_threads,
                  .device = {.device = *std::move(device), .threads = *threads, .cuda = CachingCudaOptions()},
                  .json = arguments.Has("json")};
  if (arguments.Has("coordinator")) {
    absl::StatusOr<ModelFollower::Options> follow = ReadFollowing(arguments);
    if (!follow.ok()) return follow.status();
    request.follow = *std::move(follow);
  }
  return request;
}

// Owns the model and, while it follows a job, the follower.
struct Following {
  std::unique_ptr<ServedModel> model;
  std::unique_ptr<ModelFollower> follower;
};

absl::StatusOr<Following> Open(const Request& request) {
  if (!request.follow.has_value()) {
    absl::StatusOr<SavedModel> saved = SavedModel::Open(request.model, request.device);
    if (!saved.ok()) return saved.status();
    absl::StatusOr<std::unique_ptr<ServedModel>> model = ServedModel::Create(*std::move(saved), /*complete=*/true);
    if (!model.ok()) return model.status();
    return Following{*std::move(model), nullptr};
  }
  const absl::StatusOr<ModelDescription> description = ReadDescription(RunFolder(request.model).description());
  if (!description.ok()) return description.status();
  const auto tables = ModelFollower::AwaitTables(*description, *request.follow);
  if (!tables.ok()) return tables.status();
  absl::StatusOr<SavedModel> empty = SavedModel::Make(*description, *tables, request.device);
  if (!empty.ok()) return empty.status();
  absl::StatusOr<std::unique_ptr<ServedModel>> model = ServedModel::Create(*std::move(empty), /*complete=*/false);
  if (!model.ok()) return model.status();
  absl::StatusOr<std::unique_ptr<ModelFollower>> follower = ModelFollower::Start(model->get(), *request.follow);
  if (!follower.ok()) return follower.status();
  return Following{*std::move(model), *std::move(follower)};
}

// Waits for SIGINT or SIGTERM; a second one ends the process.
class Stop {
 public:
  Stop() : signals_([this](int, int count) { OnSignal(count); }) {}
  void Await() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&stopping_));
  }

 private:
  void OnSignal(int count) {
    if (count > 1) _exit(130);
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }

  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // Declared last, because its thread uses the other fields.
  SignalWatch signals_;
};

int Serve(const Request& request, const Streams& streams) {
  Stop stop;
  const absl::StatusOr<Following> following = Open(request);
  if (!following.ok()) {
    const bool wrong_model = absl::IsInvalidArgument(following.status()) || absl::IsNotFound(following.status());
    return Fail(streams, following.status(), wrong_model ? 2 : 1);
  }
  PredictionSource source{.model = following->model.get()};
  if (following->follower != nullptr) {
    source.following = [follower = following->follower.get()] { return follower->status(); };
  }
  const absl::StatusOr<std::unique_ptr<HttpServer>> http = HttpServer::Start(
      {.address = request.http, .threads = request.http_threads, .handler = [source](const HttpRequest& got) {
         return AnswerPrediction(source, got);
       }});
  if (!http.ok()) return Fail(streams, http.status(), 1);
  const std::unique_ptr<grpc::Service> service = MakePredictionService(source);
  const absl::StatusOr<std::unique_ptr<GrpcPort>> grpc = GrpcPort::Start({.address = request.grpc}, service.get());
  if (!grpc.ok()) return Fail(streams, grpc.status(), 1);
  const std::string& job = source.model->description().job;
  if (streams.json) {
    streams.out << JsonLine({{"model", job},
                             {"follows", following->follower != nullptr},
                             {"http", (*http)->address()},
                             {"grpc", (*grpc)->address()}})
                << std::endl;
  } else {
    streams.out << "serving " << job << (following->follower != nullptr ? ", following its job" : "") << ": http://"
                << (*http)->address() << "/v1/models/" << job << ":predict, gRPC at " << (*grpc)->address()
                << std::endl;
  }
  stop.Await();
  (*http)->Stop();
  (*grpc)->Stop(kDrain);
  return 0;
}

}  // namespace

int RunServeCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err) {
  const Streams streams{out, err, absl::c_linear_search(args, "--json")};
  const absl::StatusOr<Arguments> arguments = Arguments::Parse(Flags(), args);
  if (!arguments.ok()) return Fail(streams, arguments.status(), 2);
  if (arguments->help()) {
    out << kUsage << DescribeFlags(Flags());
    return 0;
  }
  const absl::StatusOr<Request> request = ReadRequest(*arguments);
  if (!request.ok()) return Fail(streams, request.status(), 2);
  return Serve(*request, streams);
}

}  // namespace ballast
