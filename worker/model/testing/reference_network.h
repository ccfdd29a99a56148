// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "ballast/v1/job.pb.h"
#include "worker/device/image_shape.h"

namespace ballast {

// Computes the mean training loss of a network in float64, as the reference that tests compare a Model with. It is
// written only from the formulas in job.proto. `weights` are those of all layers in the model's order; `mask` has the
// factors of each dropout. Slow. Thread safety: none.
class ReferenceNetwork {
 public:
  using Values = std::vector<double>;
  // Consecutive examples of one shape.
  struct Batch {
    Values values;
    ImageShape shape;
  };

  ReferenceNetwork(const v1::Model& config, int64_t examples, const std::vector<Values>& weights, const Values& mask)
      : config_(config), examples_(examples), weights_(weights), mask_(mask) {}

  double MeanLoss(const std::vector<float>& features, const std::vector<float>& labels) {
    Batch x{{features.begin(), features.end()}, {1, 1, static_cast<int64_t>(features.size()) / examples_}};
    if (config_.has_input()) {
      x.shape = {config_.input().height(), config_.input().width(), std::max<int64_t>(config_.input().channels(), 1)};
    }
    next_weight_ = 0;
    const Values outputs = Run(config_.layers(), std::move(x)).values;
    return config_.loss().has_mean_squared_error() ? SquaredError(outputs, labels) : CrossEntropy(outputs, labels);
  }

 private:
  Batch Run(const google::protobuf::RepeatedPtrField<v1::Layer>& layers, Batch x) {
    for (const v1::Layer& layer : layers) x = Run(layer, std::move(x));
    return x;
  }

  Batch Run(const v1::Layer& layer, Batch x) {
    switch (layer.kind_case()) {
      case v1::Layer::kDense:
        return Dense(layer.dense(), x);
      case v1::Layer::kConv2D:
        return Convolve(layer.conv2d(), x);
      case v1::Layer::kMaxPool:
        return Pool(layer.max_pool(), x,
                    [](const Values& seen) { return *std::max_element(seen.begin(), seen.end()); });
      case v1::Layer::kAveragePool:
        return Pool(layer.average_pool(), x, [](const Values& seen) { return Mean(seen); });
      case v1::Layer::kBatchNorm:
        return Normalize(x, Over::kChannel, Epsilon(layer.batch_norm().epsilon()));
      case v1::Layer::kLayerNorm:
        return Normalize(x, Over::kPixel, Epsilon(layer.layer_norm().epsilon()));
      case v1::Layer::kResidual:
        return Residual(layer.residual(), x);
      default:
        for (size_t j = 0; j < x.values.size(); ++j) x.values[j] = Activate(layer, x.values[j], j);
        return x;
    }
  }

  double Activate(const v1::Layer& layer, double x, size_t index) const {
    if (layer.has_relu()) return std::max(x, 0.0);
    if (layer.has_tanh()) return std::tanh(x);
    if (layer.has_gelu()) return x * 0.5 * (1 + std::erf(x / std::sqrt(2.0)));
    return x * mask_[index];
  }

  Batch Dense(const v1::Dense& dense, const Batch& x) {
    const Values& w = weights_[next_weight_++];
    const int64_t inputs = x.shape.elements(), units = dense.units();
    Values y(examples_ * units);
    for (size_t i = 0; i < y.size(); ++i) {
      for (int64_t j = 0; j < inputs; ++j) y[i] += x.values[i / units * inputs + j] * w[i % units * inputs + j];
    }
    if (!dense.no_bias()) AddBias(y);
    return {y, {1, 1, units}};
  }

  void AddBias(Values& y) {
    const Values& b = weights_[next_weight_++];
    for (size_t j = 0; j < y.size(); ++j) y[j] += b[j % b.size()];
  }

  // Reads a field of one or two numbers; returns `unset` if it has none.
  static std::pair<int64_t, int64_t> Numbers(const google::protobuf::RepeatedField<int64_t>& field,
                                             std::pair<int64_t, int64_t> unset) {
    return field.empty() ? unset : std::make_pair(field[0], field[field.size() - 1]);
  }

  template <typename Layer>
  static Window WindowOf(const Layer& layer, std::pair<int64_t, int64_t> kernel, std::pair<int64_t, int64_t> stride) {
    const auto padding = Numbers(layer.padding(), {0, 0});
    return {kernel.first, kernel.second, stride.first, stride.second, padding.first, padding.second};
  }

  // Calls visit(output position, window pixel, input pixel) with indices counted over all examples.
  template <typename Visit>
  void Slide(const Window& w, const ImageShape& in, Visit visit) const {
    int64_t place = 0;
    for (int64_t e = 0; e < examples_; ++e)
      for (int64_t i = 0; i < w.OutputHeight(in.height); ++i)
        for (int64_t j = 0; j < w.OutputWidth(in.width); ++j, ++place)
          for (int64_t k = 0; k < w.height * w.width; ++k) {
            const int64_t row = i * w.vertical_stride - w.vertical_padding + k / w.width;
            const int64_t column = j * w.horizontal_stride - w.horizontal_padding + k % w.width;
            if (row < 0 || row >= in.height || column < 0 || column >= in.width) continue;
            visit(place, k, (e * in.height + row) * in.width + column);
          }
  }

  Batch Convolve(const v1::Conv2d& conv, const Batch& x) {
    return Convolve(x, conv.filters(), WindowOf(conv, Numbers(conv.kernel(), {}), Numbers(conv.stride(), {1, 1})),
                    !conv.no_bias());
  }

  Batch Convolve(const Batch& x, int64_t filters, const Window& w, bool bias) {
    const Values& f = weights_[next_weight_++];
    const int64_t channels = x.shape.channels;
    const ImageShape out{w.OutputHeight(x.shape.height), w.OutputWidth(x.shape.width), filters};
    Values y(examples_ * out.elements());
    Slide(w, x.shape, [&](int64_t place, int64_t k, int64_t pixel) {
      for (int64_t filter = 0; filter < filters; ++filter)
        for (int64_t c = 0; c < channels; ++c)
          y[place * filters + filter] +=
              x.values[pixel * channels + c] * f[(filter * w.height * w.width + k) * channels + c];
    });
    if (bias) AddBias(y);
    return {y, out};
  }

  template <typename Reduce>
  Batch Pool(const v1::Pool& pool, const Batch& x, Reduce reduce) const {
    const auto kernel = Numbers(pool.kernel(), {x.shape.height, x.shape.width});
    const Window w = WindowOf(pool, kernel, Numbers(pool.stride(), kernel));
    const int64_t channels = x.shape.channels;
    const ImageShape out{w.OutputHeight(x.shape.height), w.OutputWidth(x.shape.width), channels};
    std::vector<Values> seen(examples_ * out.elements());
    Slide(w, x.shape, [&](int64_t place, int64_t, int64_t pixel) {
      for (int64_t c = 0; c < channels; ++c) seen[place * channels + c].push_back(x.values[pixel * channels + c]);
    });
    Values y;
    for (const Values& values : seen) y.push_back(reduce(values));
    return {y, out};
  }

  static double Mean(const Values& values) {
    double sum = 0;
    for (const double value : values) sum += value;
    return sum / values.size();
  }

  static double Epsilon(float given) { return given == 0 ? 1e-5 : given; }

  // The values behind one mean and variance: those of a channel in all pixels, or those of a pixel.
  enum class Over { kChannel, kPixel };

  Batch Normalize(Batch x, Over over, double epsilon) {
    const Values& scale = weights_[next_weight_++];
    const Values& offset = weights_[next_weight_++];
    const size_t channels = x.shape.channels;
    const auto group_of = [&](size_t i) { return over == Over::kChannel ? i % channels : i / channels; };
    std::vector<Values> members(over == Over::kChannel ? channels : x.values.size() / channels);
    for (size_t i = 0; i < x.values.size(); ++i) members[group_of(i)].push_back(x.values[i]);
    Values means, deviations;
    for (const Values& group : members) {
      const double mean = Mean(group);
      double variance = 0;
      for (const double value : group) variance += (value - mean) * (value - mean) / group.size();
      means.push_back(mean);
      deviations.push_back(std::sqrt(variance + epsilon));
    }
    for (size_t i = 0; i < x.values.size(); ++i) {
      const size_t group = group_of(i);
      x.values[i] = (x.values[i] - means[group]) / deviations[group] * scale[i % channels] + offset[i % channels];
    }
    return x;
  }

  Batch Residual(const v1::Residual& residual, const Batch& x) {
    Batch y = Run(residual.layers(), x);
    Batch shortcut = x;
    if (residual.shortcut_size() > 0) {
      shortcut = Run(residual.shortcut(), x);
    } else if (!(y.shape == x.shape)) {
      const auto stride = [](int64_t from, int64_t to) { return (from + to - 1) / to; };
      shortcut = Convolve(x, y.shape.channels,
                          {1, 1, stride(x.shape.height, y.shape.height), stride(x.shape.width, y.shape.width)}, false);
    }
    for (size_t i = 0; i < y.values.size(); ++i) y.values[i] += shortcut.values[i];
    return y;
  }

  double SquaredError(const Values& x, const std::vector<float>& labels) const {
    double sum = 0;
    for (size_t i = 0; i < x.size(); ++i) sum += (x[i] - labels[i]) * (x[i] - labels[i]);
    return sum / examples_;
  }

  double CrossEntropy(const Values& x, const std::vector<float>& labels) const {
    const size_t classes = x.size() / examples_;
    double sum = 0;
    for (int64_t i = 0; i < examples_; ++i) {
      double total = 0;
      for (size_t j = 0; j < classes; ++j) total += std::exp(x[i * classes + j]);
      sum += std::log(total) - x[i * classes + static_cast<size_t>(labels[i])];
    }
    return sum / examples_;
  }

  const v1::Model& config_;
  const int64_t examples_;
  const std::vector<Values>& weights_;
  const Values& mask_;
  size_t next_weight_ = 0;
};

}  // namespace ballast
