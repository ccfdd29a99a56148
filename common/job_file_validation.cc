// SPDX-License-Identifier: Apache-2.0
#include "common/job_file_validation.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/codecs/codec.h"
#include "common/job_length.h"
#include "common/optimizer_config.h"
#include "common/policy_config.h"

namespace ballast {
namespace {

constexpr size_t kMaxReported = 5;
// "name/weight" must stay within a tensor name's 256.
constexpr size_t kMaxLayerName = 240;

// Gathers what is wrong with a job. Every comparison is written so that NaN fails it.
class Faults {
 public:
  template <typename T>
  void Check(bool good, absl::string_view field, const T& got, absl::string_view want) {
    if (!good) messages_.push_back(absl::StrCat(field, " is ", got, ", want ", want));
  }

  void CheckRequired(bool present, absl::string_view field, absl::string_view want) {
    if (!present) messages_.push_back(absl::StrCat(field, " is not set, want ", want));
  }

  void CheckText(bool good, absl::string_view field, absl::string_view got, absl::string_view want) {
    Check(good, field, absl::StrCat("\"", absl::CEscape(got.substr(0, 80)), "\""), want);
  }

  void Add(const absl::Status& status) {
    if (!status.ok()) messages_.emplace_back(status.message());
  }

  absl::Status ToStatus() const {
    if (messages_.empty()) return absl::OkStatus();
    const size_t shown = std::min(messages_.size(), kMaxReported);
    std::string text = absl::StrJoin(messages_.begin(), messages_.begin() + shown, "\n");
    if (shown < messages_.size()) {
      absl::StrAppend(&text, "\nand ", messages_.size() - shown, " more");
    }
    return absl::InvalidArgumentError(text);
  }

 private:
  std::vector<std::string> messages_;
};

bool IsJobName(absl::string_view name) {
  return !name.empty() && name.size() <= 63 && absl::ascii_islower(name[0]) &&
         std::all_of(name.begin(), name.end(),
                     [](char c) { return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '_' || c == '-'; });
}

// A character that can stand between numbers.
bool IsDelimiter(absl::string_view text) {
  return text.size() == 1 && (absl::ascii_isprint(text[0]) || text[0] == '\t') && !absl::ascii_isalnum(text[0]) &&
         text[0] != '+' && text[0] != '-' && text[0] != '.' && text[0] != '"';
}

bool IsLayerName(absl::string_view name) {
  return name.size() <= kMaxLayerName &&
         std::all_of(name.begin(), name.end(), [](char c) { return absl::ascii_isgraph(c); });
}

bool IsPositive(double x) { return std::isfinite(x) && x > 0; }
bool IsShare(double x) { return x >= 0 && x < 1; }

void CheckSource(const v1::DataSource& source, const std::string& field, Faults& faults) {
  switch (source.format_case()) {
    case v1::DataSource::kIdx:
      faults.CheckRequired(!source.idx().images().empty(), field + ".idx.images", "a path");
      faults.CheckRequired(!source.idx().labels().empty(), field + ".idx.labels", "a path");
      break;
    case v1::DataSource::kCsv:
      faults.CheckRequired(!source.csv().path().empty(), field + ".csv.path", "a path");
      faults.CheckText(source.csv().delimiter().empty() || IsDelimiter(source.csv().delimiter()),
                       field + ".csv.delimiter", source.csv().delimiter(), "one character that is no part of a number");
      break;
    case v1::DataSource::kLibsvm:
      faults.CheckRequired(!source.libsvm().path().empty(), field + ".libsvm.path", "a path");
      faults.Check(source.libsvm().features() >= 1, field + ".libsvm.features", source.libsvm().features(),
                   "at least 1");
      break;
    case v1::DataSource::FORMAT_NOT_SET:
      faults.CheckRequired(false, field, "idx, csv or libsvm");
  }
}

void CheckData(const v1::Data& data, Faults& faults) {
  CheckSource(data.train(), "data.train", faults);
  if (data.has_test()) CheckSource(data.test(), "data.test", faults);
  const v1::Normalization& normalization = data.normalization();
  faults.Check(std::isfinite(normalization.mean()), "data.normalization.mean", normalization.mean(), "a finite number");
  faults.Check(!normalization.has_stddev() || IsPositive(normalization.stddev()), "data.normalization.stddev",
               normalization.stddev(), "a finite number above 0");
}

void CheckInitializer(const v1::Initializer& initializer, const std::string& field, Faults& faults) {
  if (initializer.has_constant()) {
    faults.Check(std::isfinite(initializer.constant().value()), field + ".constant.value",
                 initializer.constant().value(), "a finite number");
  }
  if (initializer.has_uniform()) {
    const v1::Initializer::Uniform& uniform = initializer.uniform();
    faults.Check(std::isfinite(uniform.low()) && std::isfinite(uniform.high()) && uniform.low() < uniform.high(),
                 field + ".uniform", absl::StrCat("low ", uniform.low(), ", high ", uniform.high()),
                 "two finite numbers, low below high");
  }
  if (initializer.has_normal()) {
    const v1::Initializer::Normal& normal = initializer.normal();
    faults.Check(std::isfinite(normal.mean()), field + ".normal.mean", normal.mean(), "a finite number");
    faults.Check(std::isfinite(normal.stddev()) && normal.stddev() >= 0, field + ".normal.stddev", normal.stddev(),
                 "a finite number of at least 0");
  }
}

void CheckLayer(const v1::Layer& layer, const std::string& field, Faults& faults) {
  faults.CheckText(IsLayerName(layer.name()), field + ".name", layer.name(),
                   absl::StrCat("at most ", kMaxLayerName, " printable characters, no spaces"));
  faults.CheckRequired(layer.kind_case() != v1::Layer::KIND_NOT_SET, field, "dense, relu, gelu, tanh or dropout");
  if (layer.has_dense()) {
    const v1::Dense& dense = layer.dense();
    faults.Check(dense.units() >= 1 && dense.units() <= 1048576, field + ".dense.units", dense.units(), "1 to 1048576");
    faults.Check(dense.inputs() >= 0, field + ".dense.inputs", dense.inputs(), "at least 1, or nothing");
    CheckInitializer(dense.initializer(), field + ".dense.initializer", faults);
  }
  if (layer.has_dropout()) {
    faults.Check(IsShare(layer.dropout().rate()), field + ".dropout.rate", layer.dropout().rate(),
                 "at least 0 and below 1");
  }
}

void CheckModel(const v1::Model& model, Faults& faults) {
  faults.CheckRequired(model.layers_size() >= 1, "model.layers", "at least 1 layer");
  std::set<std::string> names;
  for (int i = 0; i < model.layers_size(); ++i) {
    const std::string field = absl::StrCat("model.layers[", i, "]");
    const v1::Layer& layer = model.layers(i);
    CheckLayer(layer, field, faults);
    if (!layer.name().empty()) {
      faults.CheckText(names.insert(layer.name()).second, field + ".name", layer.name(),
                       "a name that no layer before it has");
    }
  }
  faults.CheckRequired(model.loss().kind_case() != v1::Loss::KIND_NOT_SET, "model.loss",
                       "softmax_cross_entropy or mean_squared_error");
}

void CheckTraining(const v1::Training& training, Faults& faults) {
  faults.Check(training.epochs() >= 1 && training.epochs() <= 1000000, "training.epochs", training.epochs(),
               "1 to 1000000");
  faults.Check(training.batch_size() >= 1 && training.batch_size() <= 1048576, "training.batch_size",
               training.batch_size(), "1 to 1048576");
  faults.Check(training.wait_seconds() <= 600, "training.wait_seconds", training.wait_seconds(),
               "1 to 600, or nothing for 60");
  faults.Check(training.accumulate_batches() <= 65536, "training.accumulate_batches", training.accumulate_batches(),
               "1 to 65536, or nothing for 1");
}

}  // namespace

absl::Status ValidateJob(const v1::Job& job) {
  Faults faults;
  faults.CheckText(IsJobName(job.name()), "name", job.name(),
                   "1 to 63 of a-z, 0-9, '_' and '-', starting with a letter");
  CheckData(job.data(), faults);
  CheckModel(job.model(), faults);
  CheckTraining(job.training(), faults);
  // A schedule's total of 0 is the job's length, known once the data is.
  faults.Add(ValidateOptimizer(WithScheduleLength(job.optimizer(), 2)));
  faults.Add(ValidateCodec(job.codec()));
  if (job.has_policy()) faults.Add(ValidatePolicy(job.policy(), 0));
  return faults.ToStatus();
}

}  // namespace ballast
