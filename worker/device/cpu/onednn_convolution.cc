// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cpu/onednn_convolution.h"

// An error of oneDNN is a bug of ours, and ends the process with oneDNN's message.
#define DNNL_ENABLE_EXCEPTIONS 0
#include <algorithm>
#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "worker/device/cpu/im2col_convolution.h"

// From libgomp, which oneDNN uses. Our clang has no <omp.h>.
extern "C" void omp_set_num_threads(int threads);

namespace ballast {
namespace {

using dnnl::memory;
using Tag = memory::format_tag;

memory::desc Floats(const memory::dims& dims, Tag tag) { return {dims, memory::data_type::f32, tag}; }

// oneDNN's description of a convolution of some images.
struct Description {
  Description(const ConvShape& shape, int64_t examples)
      : x(Floats({examples, shape.input.channels, shape.input.height, shape.input.width}, Tag::nhwc)),
        filters(Floats(FilterDims(shape), Tag::ohwi)),
        any_filters(Floats(FilterDims(shape), Tag::any)),
        bias(Floats({shape.filters}, Tag::x)),
        y(Floats({examples, shape.filters, shape.output().height, shape.output().width}, Tag::nhwc)),
        strides{shape.window.vertical_stride, shape.window.horizontal_stride},
        begin{shape.window.vertical_padding, shape.window.horizontal_padding},
        // Padding that the last window position needs; may be less than the given padding, or negative.
        end{Missing(shape.output().height, shape.window.vertical_stride, shape.window.height, shape.input.height,
                    shape.window.vertical_padding),
            Missing(shape.output().width, shape.window.horizontal_stride, shape.window.width, shape.input.width,
                    shape.window.horizontal_padding)} {}

  static memory::dims FilterDims(const ConvShape& shape) {
    return {shape.filters, shape.input.channels, shape.window.height, shape.window.width};
  }
  static int64_t Missing(int64_t places, int64_t stride, int64_t window, int64_t image, int64_t padding) {
    return (places - 1) * stride + window - image - padding;
  }

  memory::desc x, filters, any_filters, bias, y;
  memory::dims strides, begin, end;
};

// oneDNN's kernels for windows of one element that skip places (strides above 1) handle channels in blocks, and write
// behind the image's gradient if the last block is not full (seen with oneDNN 2.6 and AVX2).
bool WritesBehindImage(const ConvShape& shape) {
  constexpr int64_t kBlock = 16;
  const auto& w = shape.window;
  return w.height == 1 && w.width == 1 && (w.vertical_stride > 1 || w.horizontal_stride > 1) &&
         shape.input.channels % kBlock != 0;
}

// One direction of a convolution, ready to run: `args` are its operands in the order x, filters, bias, y. The filters
// have the layout that oneDNN prefers.
struct Step {
  dnnl::primitive primitive;
  memory::desc filters;
  memory::desc scratch;
};

enum class Direction { kForward, kForwardWithBias, kBackwardData, kBackwardFilters, kBackwardFiltersAndBias };

struct StepKey {
  Direction direction;
  ConvShape shape;
  int64_t examples;

  auto Tie() const {
    const auto& [image, w, filters] = shape;
    return std::tie(direction, examples, filters, image.height, image.width, image.channels, w.height, w.width,
                    w.vertical_stride, w.horizontal_stride, w.vertical_padding, w.horizontal_padding);
  }
  friend bool operator<(const StepKey& a, const StepKey& b) { return a.Tie() < b.Tie(); }
};

// Number of steps kept; a job has few batch sizes and layers.
constexpr size_t kMaxSteps = 1024;

class OneDnnConvolution : public Convolution {
 public:
  explicit OneDnnConvolution(int threads)
      : threads_(threads), engine_(dnnl::engine::kind::cpu, 0), stream_(engine_), im2col_(MakeIm2colConvolution()) {}

  const char* name() const override { return "oneDNN"; }

  void Forward(const ConvShape& shape, int64_t examples, const float* x, const float* filters, const float* bias,
               float* y) override {
    if (examples == 0) return;
    const Direction direction = bias == nullptr ? Direction::kForward : Direction::kForwardWithBias;
    const std::optional<Step>& step = Prepare({direction, shape, examples});
    if (!step.has_value()) return im2col_->Forward(shape, examples, x, filters, bias, y);
    const Description d(shape, examples);
    std::unordered_map<int, memory> args = {{DNNL_ARG_SRC, Wrap(d.x, x)},
                                            {DNNL_ARG_WEIGHTS, Reordered(Wrap(d.filters, filters), step->filters)},
                                            {DNNL_ARG_DST, Wrap(d.y, y)}};
    if (bias != nullptr) args.emplace(DNNL_ARG_BIAS, Wrap(d.bias, bias));
    Run(*step, std::move(args));
  }

  void BackwardData(const ConvShape& shape, int64_t examples, const float* dy, const float* filters,
                    float* dx) override {
    if (examples == 0) return;
    const std::optional<Step>& step = Prepare({Direction::kBackwardData, shape, examples});
    if (!step.has_value()) return im2col_->BackwardData(shape, examples, dy, filters, dx);
    const Description d(shape, examples);
    Run(*step, {{DNNL_ARG_DIFF_DST, Wrap(d.y, dy)},
                {DNNL_ARG_WEIGHTS, Reordered(Wrap(d.filters, filters), step->filters)},
                {DNNL_ARG_DIFF_SRC, Wrap(d.x, dx)}});
  }

  void BackwardFilters(const ConvShape& shape, int64_t examples, const float* x, const float* dy, float* dfilters,
                       float* dbias) override {
    const Direction direction = dbias == nullptr ? Direction::kBackwardFilters : Direction::kBackwardFiltersAndBias;
    const std::optional<Step>* const step = examples == 0 ? nullptr : &Prepare({direction, shape, examples});
    if (step == nullptr || !step->has_value()) {
      return im2col_->BackwardFilters(shape, examples, x, dy, dfilters, dbias);
    }
    const Description d(shape, examples);
    const memory result = Wrap(d.filters, dfilters);
    const bool as_it_is = (*step)->filters == d.filters;
    memory gradient = as_it_is ? result : memory((*step)->filters, engine_, Room((*step)->filters, filters_));
    std::unordered_map<int, memory> args = {
        {DNNL_ARG_DIFF_DST, Wrap(d.y, dy)}, {DNNL_ARG_SRC, Wrap(d.x, x)}, {DNNL_ARG_DIFF_WEIGHTS, gradient}};
    if (dbias != nullptr) args.emplace(DNNL_ARG_DIFF_BIAS, Wrap(d.bias, dbias));
    Run(**step, std::move(args));
    if (!as_it_is) Reorder(gradient, result);
  }

 private:
  // Returns the step, made at first use; empty if oneDNN would be slower than im2col or wrong. Sets the number of
  // threads.
  const std::optional<Step>& Prepare(const StepKey& key) {
    // OpenMP keeps it per calling thread; a step must run with the number that it was made for.
    omp_set_num_threads(threads_);
    if (const auto found = steps_.find(key); found != steps_.end()) return found->second;
    if (steps_.size() >= kMaxSteps) steps_.clear();
    return steps_.emplace(key, Make(key)).first->second;
  }

  std::optional<Step> Make(const StepKey& key) const {
    if (WritesBehindImage(key.shape)) return std::nullopt;
    const Description d(key.shape, key.examples);
    constexpr auto kDirect = dnnl::algorithm::convolution_direct;
    constexpr auto kTraining = dnnl::prop_kind::forward_training;
    dnnl::primitive_attr own_scratch;
    own_scratch.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    using Forward = dnnl::convolution_forward;
    using Data = dnnl::convolution_backward_data;
    using Filters = dnnl::convolution_backward_weights;

    const bool biased = key.direction == Direction::kForwardWithBias;
    const Forward::desc forward =
        biased ? Forward::desc(kTraining, kDirect, d.x, d.any_filters, d.bias, d.y, d.strides, d.begin, d.end)
               : Forward::desc(kTraining, kDirect, d.x, d.any_filters, d.y, d.strides, d.begin, d.end);
    const Forward::primitive_desc hint(forward, own_scratch, engine_, true);
    if (hint.get(true) == nullptr) return std::nullopt;
    switch (key.direction) {
      case Direction::kForward:
      case Direction::kForwardWithBias:
        return Finish<Forward>(hint, [&] { return hint.weights_desc(); });
      case Direction::kBackwardData: {
        const Data::primitive_desc made(Data::desc(kDirect, d.x, d.any_filters, d.y, d.strides, d.begin, d.end),
                                        own_scratch, engine_, hint, true);
        return Finish<Data>(made, [&] { return made.weights_desc(); });
      }
      case Direction::kBackwardFilters:
      case Direction::kBackwardFiltersAndBias: {
        const Filters::desc filters =
            key.direction == Direction::kBackwardFilters
                ? Filters::desc(kDirect, d.x, d.any_filters, d.y, d.strides, d.begin, d.end)
                : Filters::desc(kDirect, d.x, d.any_filters, d.bias, d.y, d.strides, d.begin, d.end);
        const Filters::primitive_desc made(filters, own_scratch, engine_, hint, true);
        return Finish<Filters>(made, [&] { return made.diff_weights_desc(); });
      }
    }
    return std::nullopt;
  }

  template <typename Primitive, typename FiltersOf>
  static std::optional<Step> Finish(const typename Primitive::primitive_desc& made, FiltersOf filters) {
    if (made.get(true) == nullptr || absl::StrContains(absl::string_view(made.impl_info_str()), "ref")) {
      return std::nullopt;
    }
    return Step{Primitive(made), filters(), made.scratchpad_desc()};
  }

  // oneDNN's view of memory; it does not write to inputs.
  memory Wrap(const memory::desc& desc, const float* data) const {
    return memory(desc, engine_, const_cast<float*>(data));
  }

  static float* Room(const memory::desc& desc, std::vector<float>& room) {
    room.resize(std::max(room.size(), (desc.get_size() + sizeof(float) - 1) / sizeof(float)));
    return room.data();
  }

  memory Reordered(memory filters, const memory::desc& wanted) {
    if (filters.get_desc() == wanted) return filters;
    const memory result(wanted, engine_, Room(wanted, filters_));
    Reorder(filters, result);
    return result;
  }

  void Reorder(memory from, memory to) { dnnl::reorder(from, to).execute(stream_, from, to); }

  void Run(const Step& step, std::unordered_map<int, memory> args) {
    args.emplace(DNNL_ARG_SCRATCHPAD, memory(step.scratch, engine_, Room(step.scratch, scratch_)));
    step.primitive.execute(stream_, args);
    stream_.wait();
  }

  const int threads_;
  const dnnl::engine engine_;
  dnnl::stream stream_;
  const std::unique_ptr<Convolution> im2col_;
  std::map<StepKey, std::optional<Step>> steps_;
  // Filters in oneDNN's layout, and a step's scratch memory; kept between calls.
  std::vector<float> filters_, scratch_;
};

}  // namespace

std::unique_ptr<Convolution> MakeOneDnnConvolution(int threads) { return std::make_unique<OneDnnConvolution>(threads); }

}  // namespace ballast
