// SPDX-License-Identifier: Apache-2.0
#include "common/job/model_validation.h"

#include <google/protobuf/repeated_field.h>

#include <cmath>
#include <set>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace ballast {
namespace {

// "name/weight" must fit into the 256 characters of a tensor name.
constexpr size_t kMaxLayerName = 240;
// "name/projection/weight" must fit too.
constexpr size_t kMaxResidualName = 238;
constexpr int64_t kMaxSide = int64_t{1} << 40;
constexpr int kMaxDepth = 8;

using Layers = google::protobuf::RepeatedPtrField<v1::Layer>;
using Numbers = google::protobuf::RepeatedField<int64_t>;

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
  explicit LayerChecker(ValidationErrors& errors) : faults_(errors) {}

  // `depth` is the number of enclosing residuals.
  void CheckLayers(const Layers& layers, const std::string& list, int depth) {
    for (int i = 0; i < layers.size(); ++i) CheckLayer(layers[i], absl::StrCat(list, "[", i, "]"), depth);
  }

 private:
  void CheckLayer(const v1::Layer& layer, const std::string& field, int depth) {
    const size_t longest = layer.has_residual() ? kMaxResidualName : kMaxLayerName;
    faults_.CheckText(IsLayerName(layer.name(), longest), field + ".name", layer.name(),
                      absl::StrCat("at most ", longest, " printable characters, no spaces"));
    if (!layer.name().empty()) {
      faults_.CheckText(names_.insert(layer.name()).second, field + ".name", layer.name(),
                        "a name that no earlier layer has");
    }
    faults_.CheckText(IsDevice(layer.device()), field + ".device", layer.device(),
                      "\"cpu\", a GPU's number from \"0\" to \"63\", or nothing");
    switch (layer.kind_case()) {
      case v1::Layer::kDense:
        return CheckDense(layer.dense(), field + ".dense");
      case v1::Layer::kDropout:
        return faults_.Check(layer.dropout().rate() >= 0 && layer.dropout().rate() < 1, field + ".dropout.rate",
                             layer.dropout().rate(), "at least 0 and below 1");
      case v1::Layer::kConv2D:
        return CheckConv2d(layer.conv2d(), field + ".conv2d");
      case v1::Layer::kMaxPool:
        return CheckWindow(layer.max_pool(), field + ".max_pool");
      case v1::Layer::kAveragePool:
        return CheckWindow(layer.average_pool(), field + ".average_pool");
      case v1::Layer::kBatchNorm:
        CheckRate(layer.batch_norm().epsilon(), field + ".batch_norm.epsilon");
        return CheckRate(layer.batch_norm().momentum(), field + ".batch_norm.momentum");
      case v1::Layer::kLayerNorm:
        return CheckRate(layer.layer_norm().epsilon(), field + ".layer_norm.epsilon");
      case v1::Layer::kResidual:
        return CheckResidual(layer.residual(), field + ".residual", depth);
      case v1::Layer::kRelu:
      case v1::Layer::kGelu:
      case v1::Layer::kTanh:
        return;
      case v1::Layer::KIND_NOT_SET:
        faults_.CheckRequired(false, field,
                              "dense, conv2d, max_pool, average_pool, batch_norm, layer_norm, residual, relu, gelu, "
                              "tanh or dropout");
    }
  }

  void CheckDense(const v1::Dense& dense, const std::string& field) {
    faults_.Check(dense.units() >= 1 && dense.units() <= 1048576, field + ".units", dense.units(), "1 to 1048576");
    faults_.Check(dense.inputs() >= 0, field + ".inputs", dense.inputs(), "at least 1, or nothing");
    CheckInitializer(dense.initializer(), field + ".initializer");
  }

  void CheckConv2d(const v1::Conv2d& conv, const std::string& field) {
    faults_.Check(conv.filters() >= 1 && conv.filters() <= 1048576, field + ".filters", conv.filters(), "1 to 1048576");
    faults_.CheckRequired(!conv.kernel().empty(), field + ".kernel", "the window's size");
    CheckWindow(conv, field);
    CheckInitializer(conv.initializer(), field + ".initializer");
  }

  template <typename Layer>
  void CheckWindow(const Layer& layer, const std::string& field) {
    CheckNumbers(layer.kernel(), field + ".kernel", 1);
    CheckNumbers(layer.stride(), field + ".stride", 1);
    CheckNumbers(layer.padding(), field + ".padding", 0);
  }

  void CheckNumbers(const Numbers& numbers, const std::string& field, int64_t least) {
    faults_.Check(numbers.size() <= 2, field, absl::StrCat(numbers.size(), " numbers"),
                  "1, or 2: [vertical, horizontal]");
    for (const int64_t number : numbers) {
      faults_.Check(number >= least && number <= 65536, field, number, absl::StrCat(least, " to 65536"));
    }
  }

  // Checks an epsilon or a momentum; 0 means its default.
  void CheckRate(float rate, const std::string& field) {
    faults_.Check(rate >= 0 && rate <= 1, field, rate, "above 0 and at most 1, or nothing");
  }

  void CheckResidual(const v1::Residual& residual, const std::string& field, int depth) {
    faults_.CheckRequired(!residual.layers().empty(), field + ".layers", "at least 1 layer");
    // Deeper layers are not checked, which bounds the recursion.
    if (depth >= kMaxDepth) {
      return faults_.Check(false, field, absl::StrCat("inside ", depth, " other residuals"),
                           absl::StrCat("at most ", kMaxDepth, " levels"));
    }
    CheckLayers(residual.layers(), field + ".layers", depth + 1);
    CheckLayers(residual.shortcut(), field + ".shortcut", depth + 1);
  }

  void CheckInitializer(const v1::Initializer& initializer, const std::string& field) {
    if (initializer.has_constant()) {
      faults_.Check(std::isfinite(initializer.constant().value()), field + ".constant.value",
                    initializer.constant().value(), "a finite number");
    }
    faults_.Check(!initializer.has_provided(), field, "provided",
                  "another initializer: workers with a job file do not set values");
    if (initializer.has_uniform()) {
      const v1::Initializer::Uniform& uniform = initializer.uniform();
      faults_.Check(std::isfinite(uniform.low()) && std::isfinite(uniform.high()) && uniform.low() < uniform.high(),
                    field + ".uniform", absl::StrCat("low ", uniform.low(), ", high ", uniform.high()),
                    "two finite numbers, low below high");
    }
    if (initializer.has_normal()) {
      const v1::Initializer::Normal& normal = initializer.normal();
      faults_.Check(std::isfinite(normal.mean()), field + ".normal.mean", normal.mean(), "a finite number");
      faults_.Check(std::isfinite(normal.stddev()) && normal.stddev() >= 0, field + ".normal.stddev", normal.stddev(),
                    "a finite number of at least 0");
    }
  }

  ValidationErrors& faults_;
  std::set<std::string> names_;
};

void CheckInput(const v1::Image& image, ValidationErrors& errors) {
  errors.Check(image.height() >= 1 && image.height() <= kMaxSide, "model.input.height", image.height(),
               absl::StrCat("1 to ", kMaxSide));
  errors.Check(image.width() >= 1 && image.width() <= kMaxSide, "model.input.width", image.width(),
               absl::StrCat("1 to ", kMaxSide));
  errors.Check(image.channels() >= 0 && image.channels() <= kMaxSide, "model.input.channels", image.channels(),
               absl::StrCat("1 to ", kMaxSide, ", or nothing for 1"));
}

}  // namespace

void CheckModel(const v1::Model& model, ValidationErrors& errors) {
  if (model.has_input()) CheckInput(model.input(), errors);
  errors.CheckRequired(model.layers_size() >= 1, "model.layers", "at least 1 layer");
  LayerChecker(errors).CheckLayers(model.layers(), "model.layers", 0);
  errors.CheckRequired(model.loss().kind_case() != v1::Loss::KIND_NOT_SET, "model.loss",
                       "softmax_cross_entropy or mean_squared_error");
}

}  // namespace ballast
