// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/convolution/cudnn_convolution.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "worker/device/cuda/kernels/add_bias.h"
#include "worker/device/cuda/kernels/cast.h"
#include "worker/device/cuda/library/algorithm_cache.h"
#include "worker/device/cuda/memory/memory_pool.h"
#include "worker/device/cuda/memory/workspace.h"
#include "worker/device/cuda/stream/cuda_status.h"
#include "worker/device/cuda/stream/stream_time.h"

namespace ballast {
namespace {

// Algorithms that need more are excluded, because the model needs the memory.
constexpr size_t kMaxWorkspaceBytes = size_t{512} << 20;
// Larger than the number of cuDNN's algorithms.
constexpr int kMaxAlgorithms = 16;

// Owns a cuDNN object; the deleter is the table's function that destroys it.
template <typename T>
using Owned = std::unique_ptr<T, cudnnStatus_t (*)(T*)>;

enum class Direction { kForward, kBackwardData, kBackwardFilters };

const char* NameOf(Direction direction) {
  switch (direction) {
    case Direction::kForward:
      return "forward";
    case Direction::kBackwardData:
      return "data";
    case Direction::kBackwardFilters:
      break;
  }
  return "filters";
}

// cuDNN's settings for a precision.
struct Arithmetic {
  const char* name;
  cudnnDataType_t type;
  // Set if operands and results are rounded to 16 bits; sums are fp32.
  std::optional<HalfType> half;
};

Arithmetic ArithmeticOf(Precision precision) {
  switch (precision) {
    case Precision::kFp32:
      break;
    case Precision::kTf32:
      return {"tf32", CUDNN_DATA_FLOAT, std::nullopt};
    case Precision::kBf16:
      return {"bf16", CUDNN_DATA_BFLOAT16, HalfType::kBf16};
    case Precision::kFp16:
      return {"fp16", CUDNN_DATA_HALF, HalfType::kFp16};
  }
  return {"fp32", CUDNN_DATA_FLOAT, std::nullopt};
}

// One of cuDNN's ways to compute a convolution.
struct Algorithm {
  int number = 0;
  cudnnMathType_t math = CUDNN_DEFAULT_MATH;
  size_t workspace_bytes = 0;
};

// Operands in cuDNN's order of arguments, and result: x, filters, y; filters, dy, dx; x, dy, dfilters.
struct Operands {
  const void* first;
  const void* second;
  void* result;
};

// A convolution. Images and outputs have one type; filters are floats.
struct Call {
  Direction direction;
  const ConvShape& shape;
  int64_t examples;
  ConstElements first;
  ConstElements second;
  Elements result;

  int64_t images() const { return examples * shape.input.elements(); }
  int64_t outputs() const { return examples * shape.output().elements(); }
  int64_t filters() const { return shape.filters * shape.filter_elements(); }

  int64_t first_elements() const { return direction == Direction::kBackwardData ? filters() : images(); }
  int64_t second_elements() const { return direction == Direction::kForward ? filters() : outputs(); }
  int64_t result_elements() const {
    if (direction == Direction::kForward) return outputs();
    return direction == Direction::kBackwardData ? images() : filters();
  }
};

// Everything that the choice of an algorithm depends on.
std::string KeyOf(const Call& call, absl::string_view precision) {
  const Window& w = call.shape.window;
  return absl::StrCat(NameOf(call.direction), "-", precision, "-", call.examples, "x", ToString(call.shape.input), "-",
                      call.shape.filters, "x", w.height, "x", w.width, "-s", w.vertical_stride, "x",
                      w.horizontal_stride, "-p", w.vertical_padding, "x", w.horizontal_padding);
}

class CudnnConvolution : public CudaConvolution {
 public:
  CudnnConvolution(const Cudnn& cudnn, const ConvolutionParts& parts, cudnnHandle_t handle,
                   std::unique_ptr<CudaConvolution> otherwise)
      : cudnn_(cudnn),
        autotune_(parts.options.autotune),
        memory_(*parts.memory),
        workspace_(parts.memory),
        halves_(*parts.halves),
        handle_(handle, cudnn.Destroy),
        otherwise_(std::move(otherwise)),
        cache_(CachePath(cudnn, parts)) {}

  std::string Describe() const override {
    const size_t version = cudnn_.GetVersion();
    return absl::StrCat("cuDNN ", version / 10000, ".", version / 100 % 100, ".", version % 100);
  }

  absl::Status Reserve(absl::Span<const ConvShape> shapes, int64_t examples) override {
    // The other half is for the 16-bit copies and results of a step.
    const size_t limit = std::min(kMaxWorkspaceBytes, memory_.FreeBytes() / 2);
    size_t most = 0;
    for (const ConvShape& shape : shapes) {
      for (const Direction direction : {Direction::kForward, Direction::kBackwardData, Direction::kBackwardFilters}) {
        const Call call = {direction, shape, examples, {}, {}, {}};
        if (!Counts(call)) continue;
        const absl::StatusOr<Plan> plan = Describe(call);
        if (!plan.ok()) return plan.status();
        for (const Algorithm& algorithm : Suggest(direction, *plan)) {
          if (algorithm.workspace_bytes <= limit) most = std::max(most, algorithm.workspace_bytes);
        }
      }
    }
    return workspace_.Reserve(static_cast<int64_t>(most));
  }

  int64_t workspace_bytes() const override { return workspace_.held_bytes() + otherwise_->workspace_bytes(); }

  void SetPrecision(Precision precision) override {
    precision_ = precision;
    otherwise_->SetPrecision(precision);
  }

  absl::Status Forward(cudaStream_t stream, const ConvShape& shape, int64_t examples, ConstElements x,
                       const float* filters, const float* bias, Elements y) override {
    const Call call = {Direction::kForward, shape, examples, x, filters, y};
    return Compute(stream, call, bias,
                   [&] { return otherwise_->Forward(stream, shape, examples, x, filters, bias, y); });
  }

  absl::Status BackwardData(cudaStream_t stream, const ConvShape& shape, int64_t examples, ConstElements dy,
                            const float* filters, Elements dx) override {
    const Call call = {Direction::kBackwardData, shape, examples, filters, dy, dx};
    return Compute(stream, call, nullptr,
                   [&] { return otherwise_->BackwardData(stream, shape, examples, dy, filters, dx); });
  }

  absl::Status BackwardFilters(cudaStream_t stream, const ConvShape& shape, int64_t examples, ConstElements x,
                               ConstElements dy, float* dfilters) override {
    const Call call = {Direction::kBackwardFilters, shape, examples, x, dy, dfilters};
    return Compute(stream, call, nullptr,
                   [&] { return otherwise_->BackwardFilters(stream, shape, examples, x, dy, dfilters); });
  }

 private:
  // Prepared descriptors and algorithm for convolutions of one shape.
  struct Plan {
    Owned<cudnnTensorStruct> images{nullptr, nullptr};
    Owned<cudnnTensorStruct> outputs{nullptr, nullptr};
    Owned<cudnnFilterStruct> filters{nullptr, nullptr};
    Owned<cudnnConvolutionStruct> convolution{nullptr, nullptr};
    // Not set if cuDNN cannot compute the convolution.
    std::optional<Algorithm> algorithm;
  };

  // One file per GPU and library version, because their algorithms differ.
  static std::string CachePath(const Cudnn& cudnn, const ConvolutionParts& parts) {
    if (!parts.options.autotune || parts.options.cache_folder.empty()) return "";
    return absl::StrCat(parts.options.cache_folder, "/cudnn-", cudnn.GetVersion(), "-",
                        absl::StrReplaceAll(parts.gpu, {{" ", "_"}, {"/", "_"}}), ".txt");
  }

  template <typename Otherwise>
  absl::Status Compute(cudaStream_t stream, const Call& call, const float* bias, Otherwise otherwise) {
    if (!Counts(call)) return otherwise();
    const Arithmetic arithmetic = ArithmeticOf(precision_);
    absl::Status status = ToStatus(cudnn_.SetStream(handle_.get(), stream), "cudnnSetStream");
    if (!status.ok()) return status;
    if (!arithmetic.half.has_value()) {
      const absl::StatusOr<bool> done = Run(stream, call, {call.first.data, call.second.data, call.result.data});
      if (!done.ok()) return done.status();
      if (!*done) return otherwise();
      return AddBias(stream, call, bias);
    }
    // Skips rounding if cuDNN is known not to compute this convolution.
    if (const auto plan = plans_.find(KeyOf(call, arithmetic.name)); plan != plans_.end()) {
      if (!plan->second.algorithm.has_value()) return otherwise();
    }
    absl::StatusOr<HalfCopies::Copy> first = halves_.Get(stream, *arithmetic.half, call.first, call.first_elements());
    if (!first.ok()) return first.status();
    absl::StatusOr<HalfCopies::Copy> second =
        halves_.Get(stream, *arithmetic.half, call.second, call.second_elements());
    if (!second.ok()) return second.status();
    // cuDNN's result has the type of its operands.
    const bool as_it_comes = call.result.type == ElementTypeOf(*arithmetic.half);
    absl::StatusOr<Scratch> rounded =
        Scratch::Make(&memory_, as_it_comes ? 0 : call.result_elements() * static_cast<int64_t>(sizeof(uint16_t)));
    if (!rounded.ok()) return rounded.status();
    const Operands operands = {first->data(), second->data(), as_it_comes ? call.result.data : rounded->bytes()};
    const absl::StatusOr<bool> done = Run(stream, call, operands);
    if (!done.ok()) return done.status();
    if (!*done) return otherwise();
    if (!as_it_comes) {
      const auto* const halves = static_cast<const uint16_t*>(rounded->bytes());
      status =
          CudaStatus(LaunchFromHalf(stream, *arithmetic.half, call.result_elements(), halves, call.result.As<float>()),
                     "from half");
      if (!status.ok()) return status;
    }
    return AddBias(stream, call, bias);
  }

  // `bias` may be null.
  static absl::Status AddBias(cudaStream_t stream, const Call& call, const float* bias) {
    if (bias == nullptr) return absl::OkStatus();
    const int64_t filters = call.shape.filters;
    return CudaStatus(LaunchAddBias(stream, bias, call.outputs() / filters, filters, call.result),
                      "convolution's bias");
  }

  // Returns whether there is something to compute, within cuDNN's range of sizes.
  static bool Counts(const Call& call) {
    const int64_t most = std::max({call.images(), call.outputs(), call.filters()});
    return call.examples > 0 && call.shape.filters > 0 && most > 0 && most <= std::numeric_limits<int>::max();
  }

  // Returns false if cuDNN cannot compute it.
  absl::StatusOr<bool> Run(cudaStream_t stream, const Call& call, const Operands& operands) {
    const std::string key = KeyOf(call, ArithmeticOf(precision_).name);
    auto plan = plans_.find(key);
    if (plan == plans_.end()) {
      absl::StatusOr<Plan> made = MakePlan(stream, call, operands, key);
      if (!made.ok()) return made.status();
      plan = plans_.emplace(key, *std::move(made)).first;
    }
    if (!plan->second.algorithm.has_value()) return false;
    absl::Status status = Issue(call.direction, plan->second, *plan->second.algorithm, operands);
    if (!status.ok()) return status;
    return true;
  }

  absl::StatusOr<Plan> MakePlan(cudaStream_t stream, const Call& call, const Operands& operands,
                                const std::string& key) {
    absl::StatusOr<Plan> plan = Describe(call);
    if (!plan.ok()) return plan;
    if (autotune_) {
      plan->algorithm = Recall(call.direction, *plan, key);
      // Computes it once, because the stored algorithm may not work here.
      if (plan->algorithm.has_value() && Issue(call.direction, *plan, *plan->algorithm, operands).ok()) return plan;
      plan->algorithm.reset();
    }
    const std::vector<Algorithm> candidates = Fitting(Suggest(call.direction, *plan));
    if (!autotune_) {
      const auto works = std::find_if(candidates.begin(), candidates.end(), [&](const Algorithm& algorithm) {
        return Issue(call.direction, *plan, algorithm, operands).ok();
      });
      if (works != candidates.end()) plan->algorithm = *works;
      return plan;
    }
    const absl::StatusOr<int> fastest = FindFastest(static_cast<int>(candidates.size()), [&](int candidate) {
      return TimeInStream(stream, [&] { return Issue(call.direction, *plan, candidates[candidate], operands); });
    });
    if (!fastest.ok()) return plan;
    plan->algorithm = candidates[*fastest];
    cache_.Add(key, absl::StrCat(plan->algorithm->number, ":", static_cast<int>(plan->algorithm->math)));
    return plan;
  }

  absl::StatusOr<Plan> Describe(const Call& call) {
    const cudnnDataType_t type = ArithmeticOf(precision_).type;
    Plan plan;
    cudnnTensorDescriptor_t tensor = nullptr;
    absl::Status status = ToStatus(cudnn_.CreateTensorDescriptor(&tensor), "cudnnCreateTensorDescriptor");
    if (!status.ok()) return status;
    plan.images = {tensor, cudnn_.DestroyTensorDescriptor};
    status = ToStatus(cudnn_.CreateTensorDescriptor(&tensor), "cudnnCreateTensorDescriptor");
    if (!status.ok()) return status;
    plan.outputs = {tensor, cudnn_.DestroyTensorDescriptor};
    cudnnFilterDescriptor_t filter = nullptr;
    status = ToStatus(cudnn_.CreateFilterDescriptor(&filter), "cudnnCreateFilterDescriptor");
    if (!status.ok()) return status;
    plan.filters = {filter, cudnn_.DestroyFilterDescriptor};
    cudnnConvolutionDescriptor_t convolution = nullptr;
    status = ToStatus(cudnn_.CreateConvolutionDescriptor(&convolution), "cudnnCreateConvolutionDescriptor");
    if (!status.ok()) return status;
    plan.convolution = {convolution, cudnn_.DestroyConvolutionDescriptor};

    const int examples = static_cast<int>(call.examples);
    const ImageShape &in = call.shape.input, out = call.shape.output();
    const Window& w = call.shape.window;
    status = ToStatus(cudnn_.SetTensor4dDescriptor(plan.images.get(), CUDNN_TENSOR_NHWC, type, examples,
                                                   static_cast<int>(in.channels), static_cast<int>(in.height),
                                                   static_cast<int>(in.width)),
                      "cudnnSetTensor4dDescriptor");
    status.Update(ToStatus(cudnn_.SetTensor4dDescriptor(plan.outputs.get(), CUDNN_TENSOR_NHWC, type, examples,
                                                        static_cast<int>(out.channels), static_cast<int>(out.height),
                                                        static_cast<int>(out.width)),
                           "cudnnSetTensor4dDescriptor"));
    status.Update(ToStatus(cudnn_.SetFilter4dDescriptor(
                               plan.filters.get(), type, CUDNN_TENSOR_NHWC, static_cast<int>(call.shape.filters),
                               static_cast<int>(in.channels), static_cast<int>(w.height), static_cast<int>(w.width)),
                           "cudnnSetFilter4dDescriptor"));
    status.Update(ToStatus(cudnn_.SetConvolution2dDescriptor(
                               plan.convolution.get(), static_cast<int>(w.vertical_padding),
                               static_cast<int>(w.horizontal_padding), static_cast<int>(w.vertical_stride),
                               static_cast<int>(w.horizontal_stride), 1, 1, CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT),
                           "cudnnSetConvolution2dDescriptor"));
    // cuDNN's default for floats is TF32.
    const cudnnMathType_t math = precision_ == Precision::kFp32 ? CUDNN_FMA_MATH : CUDNN_TENSOR_OP_MATH;
    status.Update(ToStatus(cudnn_.SetConvolutionMathType(plan.convolution.get(), math), "cudnnSetConvolutionMathType"));
    if (!status.ok()) return status;
    return plan;
  }

  // The algorithm measured before; nothing if none was, or if this cuDNN does not have it.
  std::optional<Algorithm> Recall(Direction direction, const Plan& plan, const std::string& key) {
    const std::optional<std::string> kept = cache_.Find(key);
    if (!kept.has_value()) return std::nullopt;
    const std::vector<std::string> words = absl::StrSplit(*kept, ':');
    int number = 0, math = 0;
    if (words.size() != 2 || !absl::SimpleAtoi(words[0], &number) || !absl::SimpleAtoi(words[1], &math)) {
      return std::nullopt;
    }
    Algorithm algorithm = {number, static_cast<cudnnMathType_t>(math), 0};
    if (number < 0 || math < 0 || !Allowed(&algorithm.math)) return std::nullopt;
    if (cudnn_.SetConvolutionMathType(plan.convolution.get(), algorithm.math) != CUDNN_STATUS_SUCCESS ||
        WorkspaceSize(direction, plan, &algorithm) != CUDNN_STATUS_SUCCESS ||
        algorithm.workspace_bytes > kMaxWorkspaceBytes || !Fits(algorithm)) {
      return std::nullopt;
    }
    return algorithm;
  }

  // Returns whether the algorithm needs no more than what is reserved, if anything is.
  bool Fits(const Algorithm& algorithm) const {
    return workspace_.size() == 0 || static_cast<int64_t>(algorithm.workspace_bytes) <= workspace_.size();
  }

  // The algorithms that fit; all if none does, because the shape may not have been reserved for.
  std::vector<Algorithm> Fitting(const std::vector<Algorithm>& algorithms) const {
    std::vector<Algorithm> fitting;
    for (const Algorithm& algorithm : algorithms) {
      if (Fits(algorithm)) fitting.push_back(algorithm);
    }
    return fitting.empty() ? algorithms : fitting;
  }

  // Returns whether this precision allows the math type: no tensor cores for FP32, and never a math type that
  // converts floats to 16 bits.
  bool Allowed(cudnnMathType_t* math) const {
    if (precision_ == Precision::kFp32) {
      if (*math == CUDNN_DEFAULT_MATH) *math = CUDNN_FMA_MATH;
      return *math == CUDNN_FMA_MATH;
    }
    if (precision_ == Precision::kTf32) return *math != CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION;
    return true;
  }

  // Algorithms that give the same bits in every run, by expected speed; none if cuDNN cannot compute the plan.
  std::vector<Algorithm> Suggest(Direction direction, const Plan& plan) {
    cudnnTensorStruct *const x = plan.images.get(), *const y = plan.outputs.get();
    switch (direction) {
      case Direction::kForward:
        return Collect<cudnnConvolutionFwdAlgoPerf_t>(cudnn_.GetConvolutionForwardAlgorithm, x, plan.filters.get(),
                                                      plan.convolution.get(), y);
      case Direction::kBackwardData:
        return Collect<cudnnConvolutionBwdDataAlgoPerf_t>(cudnn_.GetConvolutionBackwardDataAlgorithm,
                                                          plan.filters.get(), y, plan.convolution.get(), x);
      case Direction::kBackwardFilters:
        break;
    }
    return Collect<cudnnConvolutionBwdFilterAlgoPerf_t>(cudnn_.GetConvolutionBackwardFilterAlgorithm, x, y,
                                                        plan.convolution.get(), plan.filters.get());
  }

  template <typename Result, typename Function, typename... Descriptors>
  std::vector<Algorithm> Collect(Function function, Descriptors... descriptors) {
    Result results[kMaxAlgorithms];
    int count = 0;
    std::vector<Algorithm> algorithms;
    if (function(handle_.get(), descriptors..., kMaxAlgorithms, &count, results) != CUDNN_STATUS_SUCCESS) {
      return algorithms;
    }
    for (int i = 0; i < count; ++i) {
      cudnnMathType_t math = results[i].mathType;
      if (results[i].status != CUDNN_STATUS_SUCCESS || results[i].determinism != CUDNN_DETERMINISTIC ||
          results[i].memory > kMaxWorkspaceBytes || !Allowed(&math)) {
        continue;
      }
      algorithms.push_back({static_cast<int>(results[i].algo), math, results[i].memory});
    }
    return algorithms;
  }

  cudnnStatus_t WorkspaceSize(Direction direction, const Plan& plan, Algorithm* algorithm) {
    cudnnTensorStruct *const x = plan.images.get(), *const y = plan.outputs.get();
    size_t* const bytes = &algorithm->workspace_bytes;
    switch (direction) {
      case Direction::kForward:
        return cudnn_.GetConvolutionForwardWorkspaceSize(handle_.get(), x, plan.filters.get(), plan.convolution.get(),
                                                         y, static_cast<cudnnConvolutionFwdAlgo_t>(algorithm->number),
                                                         bytes);
      case Direction::kBackwardData:
        return cudnn_.GetConvolutionBackwardDataWorkspaceSize(
            handle_.get(), plan.filters.get(), y, plan.convolution.get(), x,
            static_cast<cudnnConvolutionBwdDataAlgo_t>(algorithm->number), bytes);
      case Direction::kBackwardFilters:
        break;
    }
    return cudnn_.GetConvolutionBackwardFilterWorkspaceSize(
        handle_.get(), x, y, plan.convolution.get(), plan.filters.get(),
        static_cast<cudnnConvolutionBwdFilterAlgo_t>(algorithm->number), bytes);
  }

  absl::Status Issue(Direction direction, const Plan& plan, const Algorithm& algorithm, const Operands& operands) {
    absl::Status status =
        ToStatus(cudnn_.SetConvolutionMathType(plan.convolution.get(), algorithm.math), "cudnnSetConvolutionMathType");
    if (!status.ok()) return status;
    absl::StatusOr<Workspace::Piece> workspace = workspace_.Take(static_cast<int64_t>(algorithm.workspace_bytes));
    if (!workspace.ok()) return workspace.status();
    const float alpha = 1.0f, beta = 0.0f;
    cudnnTensorStruct *const x = plan.images.get(), *const y = plan.outputs.get();
    cudnnFilterStruct* const filters = plan.filters.get();
    switch (direction) {
      case Direction::kForward:
        return ToStatus(
            cudnn_.ConvolutionForward(handle_.get(), &alpha, x, operands.first, filters, operands.second,
                                      plan.convolution.get(), static_cast<cudnnConvolutionFwdAlgo_t>(algorithm.number),
                                      workspace->memory, algorithm.workspace_bytes, &beta, y, operands.result),
            "cudnnConvolutionForward");
      case Direction::kBackwardData:
        return ToStatus(cudnn_.ConvolutionBackwardData(
                            handle_.get(), &alpha, filters, operands.first, y, operands.second, plan.convolution.get(),
                            static_cast<cudnnConvolutionBwdDataAlgo_t>(algorithm.number), workspace->memory,
                            algorithm.workspace_bytes, &beta, x, operands.result),
                        "cudnnConvolutionBackwardData");
      case Direction::kBackwardFilters:
        break;
    }
    return ToStatus(cudnn_.ConvolutionBackwardFilter(
                        handle_.get(), &alpha, x, operands.first, y, operands.second, plan.convolution.get(),
                        static_cast<cudnnConvolutionBwdFilterAlgo_t>(algorithm.number), workspace->memory,
                        algorithm.workspace_bytes, &beta, filters, operands.result),
                    "cudnnConvolutionBackwardFilter");
  }

  absl::Status ToStatus(cudnnStatus_t status, absl::string_view call) const {
    if (status == CUDNN_STATUS_SUCCESS) return absl::OkStatus();
    return absl::InternalError(
        absl::StrCat("cuda device: ", call, ": error ", static_cast<int>(status), ", ", cudnn_.GetErrorString(status)));
  }

  const Cudnn& cudnn_;
  const bool autotune_;
  Precision precision_ = Precision::kFp32;
  MemoryPool& memory_;
  Workspace workspace_;
  HalfCopies& halves_;
  const Owned<cudnnContext> handle_;
  const std::unique_ptr<CudaConvolution> otherwise_;
  AlgorithmCache cache_;
  std::unordered_map<std::string, Plan> plans_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CudaConvolution>> MakeCudnnConvolution(const Cudnn& cudnn, const ConvolutionParts& parts,
                                                                      std::unique_ptr<CudaConvolution> otherwise) {
  cudnnHandle_t handle = nullptr;
  const cudnnStatus_t status = cudnn.Create(&handle);
  if (status != CUDNN_STATUS_SUCCESS) {
    return absl::FailedPreconditionError(
        absl::StrCat("cuda device: cudnnCreate: error ", static_cast<int>(status), ", ", cudnn.GetErrorString(status)));
  }
  return std::make_unique<CudnnConvolution>(cudnn, parts, handle, std::move(otherwise));
}

std::unique_ptr<CudaConvolution> MakeConvolutionWith(const absl::StatusOr<const Cudnn*>& cudnn,
                                                     const ConvolutionParts& parts) {
  absl::Status status = cudnn.status();
  if (status.ok()) {
    auto made = MakeCudnnConvolution(**cudnn, parts, MakeIm2colConvolution(parts.gemm, parts.memory));
    if (made.ok()) return *std::move(made);
    status = made.status();
  }
  WarnOfProducts(status.message());
  return MakeIm2colConvolution(parts.gemm, parts.memory);
}

}  // namespace ballast
