// SPDX-License-Identifier: Apache-2.0
#include "common/job/job_file_validation.h"

#include <google/protobuf/repeated_field.h>

#include <algorithm>
#include <set>
#include <string>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/codecs/codec.h"
#include "common/job/data_validation.h"
#include "common/job/job_config.h"
#include "common/job/job_length.h"
#include "common/job/layer_names.h"
#include "common/job/limits.h"
#include "common/text/nearest_name.h"
#include "common/text/validation_errors.h"

namespace ballast {
namespace {

bool IsJobName(absl::string_view name) {
  return !name.empty() && name.size() <= 63 && absl::ascii_islower(name[0]) &&
         std::all_of(name.begin(), name.end(),
                     [](char c) { return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '_' || c == '-'; });
}

// "name/weight" must fit into the 256 characters of a tensor name.
constexpr size_t kMaxLayerName = 240;
// "name/projection/weight" must fit too.
constexpr size_t kMaxResidualName = 238;
constexpr int kMaxDepth = 8;

using Layers = google::protobuf::RepeatedPtrField<v1::Layer>;

bool IsLayerName(absl::string_view name, size_t longest) {
  return name.size() <= longest && std::all_of(name.begin(), name.end(), [](char c) { return absl::ascii_isgraph(c); });
}

bool IsDevice(absl::string_view name) {
  int number = 0;
  return name.empty() || name == "cpu" ||
         (absl::SimpleAtoi(name, &number) && number >= 0 && number <= 63 && absl::StrCat(number) == name);
}

// Checks the layers of a model and collects their names.
class LayerChecker {
 public:
  explicit LayerChecker(ValidationErrors& errors) : errors_(errors) {}

  // `depth` is the number of enclosing residuals.
  void CheckLayers(const Layers& layers, const std::string& list, int depth) {
    for (int i = 0; i < layers.size(); ++i) CheckLayer(layers[i], absl::StrCat(list, "[", i, "]"), depth);
  }

 private:
  void CheckLayer(const v1::Layer& layer, const std::string& field, int depth) {
    const size_t longest = layer.has_residual() ? kMaxResidualName : kMaxLayerName;
    errors_.CheckText(IsLayerName(layer.name(), longest), field + ".name", layer.name(),
                      absl::StrCat("at most ", longest, " printable characters, no spaces"));
    if (!layer.name().empty()) {
      errors_.CheckText(names_.insert(layer.name()).second, field + ".name", layer.name(),
                        "a name that no earlier layer has");
    }
    errors_.CheckText(IsDevice(layer.device()), field + ".device", layer.device(),
                      "\"cpu\", a GPU's number from \"0\" to \"63\", or nothing");
    CheckInitializer(layer.dense().initializer(), field + ".dense.initializer");
    CheckInitializer(layer.conv2d().initializer(), field + ".conv2d.initializer");
    if (layer.has_residual()) CheckResidual(layer.residual(), field + ".residual", depth);
  }

  void CheckResidual(const v1::Residual& residual, const std::string& field, int depth) {
    if (depth >= kMaxDepth) {
      return errors_.Add(field, absl::StrCat("a place inside ", depth, " other residuals"),
                         absl::StrCat("at most ", kMaxDepth, " levels"));
    }
    CheckLayers(residual.layers(), field + ".layers", depth + 1);
    CheckLayers(residual.shortcut(), field + ".shortcut", depth + 1);
  }

  void CheckInitializer(const v1::Initializer& initializer, const std::string& field) {
    errors_.Check(!initializer.has_provided(), field, "provided",
                  "another initializer: init_from gives initial values");
    const v1::Initializer::Uniform& uniform = initializer.uniform();
    errors_.Check(!initializer.has_uniform() || !(uniform.low() >= uniform.high()), field + ".uniform",
                  absl::StrCat("low ", uniform.low(), ", high ", uniform.high()), "low below high");
  }

  ValidationErrors& errors_;
  std::set<std::string> names_;
};

void CheckFreeze(const v1::Job& job, ValidationErrors& errors) {
  if (job.freeze().empty()) return;
  errors.Check(!job.init_from().empty(), "freeze", absl::StrCat(job.freeze_size(), " layers, but no init_from"),
               "init_from, which has their values");
  const std::vector<std::string> names = LayerNames(job.model());
  std::set<std::string> seen;
  for (int i = 0; i < job.freeze_size(); ++i) {
    const std::string& name = job.freeze(i);
    const std::string field = absl::StrCat("freeze[", i, "]");
    const std::string* const nearest = FindNearestName(name, names).name;
    errors.CheckText(absl::c_linear_search(names, name), field, name,
                     absl::StrCat("the name of a layer, like \"", nearest == nullptr ? "" : *nearest, "\""));
    errors.CheckText(seen.insert(name).second, field, name, "each layer once");
  }
}

// Checks the fields that evaluations decide.
void CheckEvaluated(const v1::Job& job, ValidationErrors& errors) {
  const v1::Training& training = job.training();
  const bool tested = job.data().has_test() || job.data().test_share() > 0;
  const auto check = [&](bool set, v1::TestMetric metric, const std::string& field, const std::string& metric_field) {
    if (!set) return;
    errors.Check(tested, field, "no test data", "data.test or data.test_share");
    errors.Check(metric != v1::TEST_ACCURACY || !job.model().loss().has_mean_squared_error(), metric_field,
                 "TEST_ACCURACY with mean_squared_error", "TEST_LOSS: accuracy is for classification");
  };
  check(training.has_early_stopping(), training.early_stopping().metric(), "training.early_stopping",
        "training.early_stopping.metric");
  check(training.keep_best() != v1::TEST_METRIC_UNSPECIFIED, training.keep_best(), "training.keep_best",
        "training.keep_best");
}

}  // namespace

absl::Status ValidateJob(const v1::Job& job) {
  ValidationErrors errors;
  errors.CheckText(IsJobName(job.name()), "name", job.name(),
                   "1 to 63 of a-z, 0-9, '_' and '-', starting with a letter");
  // The optimizer and the policy have checks of their own.
  v1::Job rest = job;
  rest.clear_optimizer();
  rest.clear_policy();
  CheckLimits(rest, "", errors);
  CheckData(job.data(), errors);
  CheckModel(job.model(), errors);
  CheckFreeze(job, errors);
  CheckEvaluated(job, errors);
  errors.Check(!job.optimizer().schedule().total_from_job(), "optimizer.schedule.total_from_job", "true",
               "it left out: a schedule without a total follows the job");
  // A total of 0 means the job's length, which is known only once the data is loaded.
  errors.Add(ValidateOptimizer(WithScheduleLength(job.optimizer(), 2)));
  errors.Add(ValidateCodec(job.codec()));
  if (job.has_policy()) errors.Add(ValidatePolicy(job.policy(), 0));
  return errors.ToStatus();
}

void CheckModel(const v1::Model& model, ValidationErrors& errors) {
  LayerChecker(errors).CheckLayers(model.layers(), "model.layers", 0);
}

}  // namespace ballast
