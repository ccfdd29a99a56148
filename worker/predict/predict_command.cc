// SPDX-License-Identifier: Apache-2.0
#include "worker/predict/predict_command.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <system_error>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/metrics/test_metric.h"
#include "common/program/arguments.h"
#include "common/program/core_count.h"
#include "common/storage/output_file.h"
#include "common/text/json_fields.h"
#include "common/text/number_text.h"
#include "worker/predict/prediction_data.h"
#include "worker/predict/prediction_text.h"
#include "worker/predict/saved_model.h"
#include "worker/training/training_loop.h"
#include "worker/training/worker_resources.h"

namespace ballast {
namespace {

constexpr char kPredictUsage[] =
    "usage: ballast predict MODEL --data FILE [flags]\n\n"
    "Predicts from new data. MODEL is a model.safetensors or a run directory. Writes one line per example, in the "
    "order\n"
    "of the data: CSV with a header, or JSON objects. A class is followed by the probabilities of all classes.\n\n";
constexpr char kEvalUsage[] =
    "usage: ballast eval MODEL --data FILE [flags]\n\n"
    "Evaluates a model on data with labels: prints the loss, the accuracy of a classification, the area under the ROC\n"
    "curve (AUC) and the calibration of a model of one of two labels, and the number of\n"
    "examples. MODEL is a model.safetensors or a run directory.\n\n";

constexpr int kMaxThreads = 1024;
// Text that is collected before it is written.
constexpr size_t kChunkBytes = 1 << 20;

std::vector<FlagSpec> Flags(bool predicts) {
  std::vector<FlagSpec> flags = {
      {"data", "FILE", "File of examples; for IDX the images. Required."},
      {"labels", "FILE", predicts ? "IDX: file of labels; not needed." : "IDX: file of labels. Required for IDX."},
      {"format", "FORMAT",
       "Format of the data: csv, idx, libsvm, criteo or libffm, or with its fields as in a job file: \"csv { header: "
       "true }\" "
       "(default: the format of the training data)."},
      {"device", "auto|cpu|cuda", "Compute device (default: auto, a GPU if there is one)."},
      {"threads", "N", "Compute threads on the CPU (default: all cores)."},
      {"json", "", predicts ? "Write JSON objects instead of CSV." : "Print one JSON object."},
  };
  if (predicts)
    flags.push_back({"out", "FILE",
                     "File to write, which appears when it is complete (default: standard "
                     "output)."});
  return flags;
}

// Streams of a command. With --json, a failure is one JSON object on `out`, too.
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

struct Request {
  std::string model;
  SavedModel::Options device;
  PredictionData data;
  std::string out;
  bool json = false;
};

absl::StatusOr<Request> ReadRequest(const std::string& name, const Arguments& arguments) {
  if (arguments.positional().size() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": got ", arguments.positional().size(), " models, want exactly one; see --help"));
  }
  for (const char* flag : {"data", "labels", "format", "out"}) {
    if ((arguments.Has(flag) || absl::string_view(flag) == "data") && arguments.Get(flag, "").empty()) {
      return absl::InvalidArgumentError(absl::StrCat("flag --", flag, ": got nothing, want a value; see --help"));
    }
  }
  absl::StatusOr<std::string> device = arguments.GetChoice("device", "auto", {"auto", "cpu", "cuda"});
  if (!device.ok()) return device.status();
  const int cores = std::min(CoreCount(), kMaxThreads);
  const absl::StatusOr<int> threads = arguments.GetInt("threads", cores, 1, kMaxThreads);
  if (!threads.ok()) return threads.status();
  return Request{.model = arguments.positional()[0],
                 .device = {.device = *std::move(device), .threads = *threads, .cuda = CachingCudaOptions()},
                 .data = {.path = arguments.Get("data", ""),
                          .labels = arguments.Get("labels", ""),
                          .format = arguments.Get("format", ""),
                          .needs_labels = name == "eval"},
                 .out = arguments.Get("out", ""),
                 .json = arguments.Has("json")};
}

absl::Status CannotWrite(const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("cannot write ", status.message()));
}

// Opens --out, which must not replace what is read.
absl::StatusOr<OutputFile> OpenOutput(const Request& request, const std::string& model) {
  if (request.out.empty()) return OutputFile::StandardOutput();
  for (const std::string& input : {request.data.path, request.data.labels, model}) {
    std::error_code error;
    if (std::filesystem::equivalent(request.out, input, error)) {
      return absl::InvalidArgumentError(
          absl::StrCat("flag --out: got ", request.out, ", which is read, want another file"));
    }
  }
  absl::StatusOr<OutputFile> file = OutputFile::Open(request.out);
  if (!file.ok()) return CannotWrite(file.status());
  return file;
}

// Writes the predictions for all examples, in chunks.
absl::Status WritePredictions(SavedModel& saved, const Dataset& data, const PredictionText& format, OutputFile& to) {
  const int64_t outputs = saved.model->outputs();
  const bool logit = saved.model->predicts_probability();
  std::vector<uint64_t> indices;
  std::vector<float> features, labels, predicted;
  IdBags ids;
  std::string text = format.header();
  for (uint64_t begin = 0; begin < data.size(); begin += indices.size()) {
    indices.resize(std::min<uint64_t>(saved.max_batch, data.size() - begin));
    std::iota(indices.begin(), indices.end(), begin);
    features.resize(indices.size() * data.features());
    labels.resize(indices.size());
    predicted.resize(indices.size() * outputs);
    absl::Status status = data.Read(indices, absl::MakeSpan(features), absl::MakeSpan(labels), &ids);
    if (status.ok()) status = saved.Predict(features, ids, absl::MakeSpan(predicted));
    if (!status.ok()) return status;
    for (size_t i = 0; i < indices.size(); ++i) {
      // A logit x of label 1 is a softmax over 0 and x.
      const float logits[] = {0, predicted[i * outputs]};
      format.Append(logit ? logits : absl::MakeConstSpan(predicted).subspan(i * outputs, outputs), text);
    }
    if (text.size() < kChunkBytes) continue;
    if (status = CannotWrite(to.Write(text)); !status.ok()) return status;
    text.clear();
  }
  if (absl::Status status = CannotWrite(to.Write(text)); !status.ok()) return status;
  return CannotWrite(to.Finish());
}

int Predict(const Request& request, SavedModel& saved, const Dataset& data, const Streams& streams) {
  std::vector<std::string> classes;
  if (saved.model->classifies()) {
    absl::StatusOr<std::vector<std::string>> names =
        ClassNames(saved.description, saved.model->predicts_probability() ? 2 : saved.model->outputs());
    if (!names.ok()) return Fail(streams, names.status(), 2);
    classes = *std::move(names);
  }
  absl::StatusOr<OutputFile> file = OpenOutput(request, saved.path);
  if (!file.ok()) return Fail(streams, file.status(), 2);
  const absl::Status status = WritePredictions(saved, data, PredictionText(classes, request.json), *file);
  return status.ok() ? 0 : Fail(streams, status, 1);
}

int Evaluate(const Request& request, SavedModel& saved, const Dataset& data, const Streams& streams) {
  if (absl::Status status = CheckLabels(data, *saved.model); !status.ok()) return Fail(streams, status, 2);
  const absl::StatusOr<v1::Evaluation> result =
      Evaluator(&data, saved.model.get(), saved.rows.get(), saved.max_batch).Evaluate(0);
  if (!result.ok()) return Fail(streams, result.status(), 1);
  if (request.json) {
    nlohmann::ordered_json json = {{"loss", result->loss()}};
    if (result->has_accuracy()) json["accuracy"] = result->accuracy();
    if (result->has_auc()) json["auc"] = result->auc();
    if (result->has_calibration()) json["calibration"] = result->calibration();
    if (result->has_bayes_auc()) json["bayes_auc"] = result->bayes_auc();
    json["examples"] = data.size();
    streams.out << JsonLine(json) << std::endl;
  } else {
    streams.out << absl::StrFormat("loss %.4g", result->loss()) << EvaluationText(*result) << " on "
                << CountText(data.size()) << " examples" << std::endl;
  }
  return streams.out.good() ? 0 : Fail(streams, absl::UnknownError("cannot write standard output"), 1);
}

}  // namespace

bool IsModelCommand(absl::string_view name) { return name == "predict" || name == "eval"; }

int RunModelCommand(const std::string& name, absl::Span<const std::string> args, std::ostream& out, std::ostream& err) {
  const bool predicts = name == "predict";
  const Streams streams{out, err, absl::c_linear_search(args, "--json")};
  const std::vector<FlagSpec> flags = Flags(predicts);
  const absl::StatusOr<Arguments> arguments = Arguments::Parse(flags, args);
  if (!arguments.ok()) return Fail(streams, arguments.status(), 2);
  if (arguments->help()) {
    out << (predicts ? kPredictUsage : kEvalUsage) << DescribeFlags(flags);
    return 0;
  }
  const absl::StatusOr<Request> request = ReadRequest(name, *arguments);
  if (!request.ok()) return Fail(streams, request.status(), 2);
  absl::StatusOr<SavedModel> saved = SavedModel::Open(request->model, request->device);
  if (!saved.ok()) return Fail(streams, saved.status(), 2);
  const absl::StatusOr<std::unique_ptr<Dataset>> data = OpenPredictionData(request->data, saved->description);
  if (!data.ok()) return Fail(streams, data.status(), 2);
  return predicts ? Predict(*request, *saved, **data, streams) : Evaluate(*request, *saved, **data, streams);
}

}  // namespace ballast
