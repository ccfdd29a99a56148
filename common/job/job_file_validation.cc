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
#include "common/job/kind_names.h"
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
    errors.Check(metric != v1::TEST_AUC || job.model().loss().has_sigmoid_cross_entropy(), metric_field,
                 "TEST_AUC without sigmoid_cross_entropy", "another metric: AUC is for one of two labels");
  };
  check(training.has_early_stopping(), training.early_stopping().metric(), "training.early_stopping",
        "training.early_stopping.metric");
  check(training.keep_best() != v1::TEST_METRIC_UNSPECIFIED, training.keep_best(), "training.keep_best",
        "training.keep_best");
}

// Checks that tables and the layers that look up their rows belong together, and that a table may have its settings.
class TableChecker {
 public:
  TableChecker(const v1::Model& model, ValidationErrors& errors) : errors_(errors) {
    for (const v1::EmbeddingTable& table : model.tables()) names_.push_back(table.name());
    used_.resize(names_.size());
    CheckLayers(model.layers(), "model.layers");
    for (int i = 0; i < model.tables_size(); ++i) CheckTable(model.tables(i), i);
  }

 private:
  void CheckLayers(const Layers& layers, const std::string& list) {
    for (int i = 0; i < layers.size(); ++i) {
      const std::string field = absl::StrCat(list, "[", i, "]");
      if (layers[i].has_embedding()) CheckUse(layers[i].embedding().table(), field + ".embedding.table");
      CheckLayers(layers[i].residual().layers(), field + ".residual.layers");
      CheckLayers(layers[i].residual().shortcut(), field + ".residual.shortcut");
    }
  }

  void CheckUse(const std::string& table, const std::string& field) {
    // A missing name has an error already.
    if (table.empty()) return;
    const auto found = absl::c_find(names_, table);
    if (found == names_.end()) {
      const std::string* const nearest = FindNearestName(table, names_).name;
      return errors_.Add(field, absl::StrCat("\"", table, "\""),
                         nearest == nullptr ? "a table, but model.tables has none"
                                            : absl::StrCat("a table of model.tables, like \"", *nearest, "\""));
    }
    errors_.CheckText(!used_[found - names_.begin()], field, table, "a table that no earlier layer has");
    used_[found - names_.begin()] = true;
  }

  void CheckTable(const v1::EmbeddingTable& table, int index) {
    const std::string field = absl::StrCat("model.tables[", index, "]");
    errors_.CheckText(IsLayerName(table.name(), kMaxLayerName), field + ".name", table.name(),
                      absl::StrCat("at most ", kMaxLayerName, " printable characters, no spaces"));
    errors_.CheckText(absl::c_find(names_, table.name()) - names_.begin() == index, field + ".name", table.name(),
                      "a name that no earlier table has");
    if (used_[index] || table.name().empty()) return;
    errors_.Add(field, absl::StrCat("\"", table.name(), "\", which no layer looks up"),
                absl::StrCat("a layer with embedding { table: \"", table.name(), "\" }"));
  }

  ValidationErrors& errors_;
  std::vector<std::string> names_;
  // For each table, whether a layer has it.
  std::vector<bool> used_;
};

// Adds the first error of a part that has checks of its own, with the part's place in front.
void AddOf(const std::string& field, const absl::Status& status, ValidationErrors& errors) {
  if (status.ok()) return;
  errors.Add(absl::InvalidArgumentError(absl::StrCat(field, ".", status.message())));
}

// Checks the fields of a job that its tables restrict.
void CheckTableSettings(const v1::Job& job, ValidationErrors& errors) {
  const v1::Model& model = job.model();
  if (model.tables().empty()) return;
  errors.Check(!job.policy().has_local_sgd(), "policy", "local_sgd",
               "another policy: rows of tables have no local steps");
  errors.Check(job.training().precision() != v1::FP16, "training.precision", "FP16",
               "FP32, TF32 or BF16: gradients of rows are not scaled");
  errors.Check(job.training().keep_best() == v1::TEST_METRIC_UNSPECIFIED, "training.keep_best", "a metric and tables",
               "nothing: the rows of an earlier epoch are not kept");
  for (int i = 0; i < model.tables_size(); ++i) {
    const v1::EmbeddingTable& table = model.tables(i);
    const std::string field = absl::StrCat("model.tables[", i, "]");
    AddOf(field, ValidateInitializer(table.initializer(), v1::PARAMETER_KIND_TABLE), errors);
    const v1::Optimizer& optimizer = table.has_optimizer() ? table.optimizer() : job.optimizer();
    AddOf(field, ValidateOptimizer(WithScheduleLength(optimizer, 2), v1::PARAMETER_KIND_TABLE), errors);
    if (!table.has_policy()) continue;
    AddOf(field, ValidatePolicy(table.policy(), 0), errors);
    errors.Check(!table.policy().has_local_sgd(), field + ".policy", "local_sgd", "sync, async or bounded");
    errors.Check(!table.policy().has_sync() || KeepsLockStep(job.policy()), field + ".policy",
                 "sync in a job without it", "async or bounded: the workers do not take the same steps");
  }
}

// The workers of a stream take no common steps, because each has rows at other times.
void CheckStreamSettings(const v1::Job& job, ValidationErrors& errors) {
  if (!job.data().has_stream()) return;
  errors.Check(!KeepsLockStep(job.policy()), "policy", KindName(job.policy()),
               "async or bounded in a job with data.stream: the workers do not take the same steps");
}

// Checks that the job's policy does not choose a clock for tables that it has none of.
void CheckStalenessOf(const v1::Job& job, ValidationErrors& errors) {
  if (!CountsStalenessOfTables(job.policy())) return;
  const bool used = absl::c_any_of(job.model().tables(), [](const auto& table) { return !table.has_policy(); });
  errors.Check(used, absl::StrCat("policy.", KindName(job.policy()), ".staleness_of"), "TABLE",
               job.model().tables().empty() ? "it only in a model with tables"
                                            : "it only if a table of the model has no policy of its own");
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
  for (v1::EmbeddingTable& table : *rest.mutable_model()->mutable_tables()) {
    table.clear_optimizer();
    table.clear_policy();
    table.clear_initializer();
  }
  CheckLimits(rest, "", errors);
  CheckData(job.data(), errors);
  CheckModel(job.model(), errors);
  CheckTableSettings(job, errors);
  CheckStreamSettings(job, errors);
  CheckStalenessOf(job, errors);
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
  TableChecker(model, errors);
}

}  // namespace ballast
