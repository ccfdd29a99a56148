// SPDX-License-Identifier: Apache-2.0
#include "worker/model/layers/layer_fields.h"

#include <functional>
#include <numeric>
#include <utility>

namespace ballast {
namespace {

constexpr int64_t kMaxWindow = 65536;

using Pair = std::pair<int64_t, int64_t>;

std::string Text(const Pair& pair) { return absl::StrCat(pair.first, "x", pair.second); }

// Returns [vertical, horizontal] of a field whose numbers must be `least` to kMaxWindow.
absl::StatusOr<Pair> ReadPair(const LayerSite& site, absl::string_view field, const WindowFields::Numbers& numbers,
                              int64_t least, const Pair& unset) {
  if (numbers.empty()) return unset;
  if (numbers.size() > 2) {
    return LayerError(site.name, field, " has ", numbers.size(), " numbers, want 1, or 2: [vertical, horizontal]");
  }
  for (const int64_t number : numbers) {
    if (number < least || number > kMaxWindow) {
      return LayerError(site.name, field, " is ", number, ", want ", least, " to ", kMaxWindow);
    }
  }
  return Pair(numbers[0], numbers[numbers.size() - 1]);
}

}  // namespace

absl::StatusOr<Window> ReadWindow(const LayerSite& site, const WindowFields& fields, const Window& unset) {
  const absl::StatusOr<Pair> kernel = ReadPair(site, "kernel", fields.kernel, 1, {unset.height, unset.width});
  if (!kernel.ok()) return kernel.status();
  const Pair unset_stride = unset.vertical_stride == 0 ? *kernel : Pair(unset.vertical_stride, unset.horizontal_stride);
  const absl::StatusOr<Pair> stride = ReadPair(site, "stride", fields.stride, 1, unset_stride);
  if (!stride.ok()) return stride.status();
  const absl::StatusOr<Pair> padding = ReadPair(site, "padding", fields.padding, 0, {0, 0});
  if (!padding.ok()) return padding.status();
  if (padding->first >= kernel->first || padding->second >= kernel->second) {
    return LayerError(site.name, "padding is ", Text(*padding), ", want less than the kernel, ", Text(*kernel));
  }
  const Window window{kernel->first, kernel->second, stride->first, stride->second, padding->first, padding->second};
  if (Fits(window, site.input)) return window;
  const bool flat = site.input.pixels() == 1;
  return LayerError(site.name, "kernel is ", Text(*kernel), ", want at most the padded input's ",
                    site.input.height + 2 * padding->first, "x", site.input.width + 2 * padding->second,
                    "; its input is ", ToString(site.input),
                    flat ? ", flat: if the features are images, set model.input" : "");
}

std::string KernelText(const Window& window) { return Text({window.height, window.width}); }

std::vector<Parameter> WeightAndBias(const std::string& layer, std::vector<int64_t> shape,
                                     const v1::Initializer& initializer, bool bias) {
  const int64_t outputs = shape[0];
  const int64_t elements = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  std::vector<Parameter> parameters = {{layer + "/weight", std::move(shape), initializer, elements}};
  v1::Initializer& own = parameters[0].initializer;
  if (own.kind_case() == v1::Initializer::KIND_NOT_SET) own.mutable_he_normal();
  if (!bias) return parameters;
  parameters.push_back({layer + "/bias", {outputs}, {}, outputs});
  parameters[1].initializer.mutable_zeros();
  return parameters;
}

}  // namespace ballast
