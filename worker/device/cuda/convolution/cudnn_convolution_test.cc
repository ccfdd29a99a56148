// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/convolution/cudnn_convolution.h"

#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "worker/device/cuda/emulator/emulated_gpu.h"
#include "worker/device/cuda/kernels/half_math.h"
#include "worker/device/cuda/stream/cuda_status.h"

// A fake table replaces cuDNN. It computes convolutions from the descriptors, by definition, and records its calls.
// So these tests check the arguments that we pass to cuDNN and our handling of its results.
namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

struct FakeTensor {
  cudnnDataType_t type;
  int n, c, h, w;
};

struct FakeConvolution {
  int pad_h, pad_w, stride_h, stride_w;
  cudnnMathType_t math;
};

struct FakeAlgorithm {
  int number;
  cudnnDeterminism_t determinism = CUDNN_DETERMINISTIC;
  size_t memory = 64;
  cudnnMathType_t math = CUDNN_TENSOR_OP_MATH;
  float milliseconds = 1.0f;
  bool works = true;
};

// Results that the fake returns, and calls that it records.
struct Fake {
  std::vector<FakeAlgorithm> algorithms = {{1}};
  cudnnStatus_t suggesting = CUDNN_STATUS_SUCCESS;
  cudaStream_t stream = nullptr;
  int suggested = 0;
  std::vector<int> ran;
  std::vector<cudnnMathType_t> math;
  std::vector<cudnnDataType_t> types;
  // Pointers to operands and results.
  std::vector<const void*> operands;
};

Fake fake;

template <typename To, typename From>
To* As(From* opaque) {
  return reinterpret_cast<To*>(opaque);
}

template <typename Value, typename Opaque>
cudnnStatus_t Make(Opaque** made) {
  *made = reinterpret_cast<Opaque*>(new Value());
  return CUDNN_STATUS_SUCCESS;
}

template <typename Value, typename Opaque>
cudnnStatus_t Destroy(Opaque* made) {
  delete As<Value>(made);
  return CUDNN_STATUS_SUCCESS;
}

template <typename Result>
cudnnStatus_t Suggest(int most, int* count, Result* results) {
  ++fake.suggested;
  *count = 0;
  for (const FakeAlgorithm& a : fake.algorithms) {
    if (*count == most) break;
    results[(*count)++] = {
        static_cast<decltype(Result::algo)>(a.number), CUDNN_STATUS_SUCCESS, 0, a.memory, a.determinism, a.math, {}};
  }
  return fake.suggesting;
}

template <typename Number>
cudnnStatus_t Workspace(Number number, size_t* bytes) {
  for (const FakeAlgorithm& a : fake.algorithms) {
    if (a.number != static_cast<int>(number)) continue;
    *bytes = a.memory;
    return CUDNN_STATUS_SUCCESS;
  }
  return CUDNN_STATUS_NOT_SUPPORTED;
}

float Read(cudnnDataType_t type, const void* memory, int64_t i) {
  if (type == CUDNN_DATA_FLOAT) return static_cast<const float*>(memory)[i];
  const uint16_t half = static_cast<const uint16_t*>(memory)[i];
  return type == CUDNN_DATA_BFLOAT16 ? FromBf16(half) : FromFp16(half);
}

void Write(cudnnDataType_t type, double value, void* memory, int64_t i) {
  const float rounded = static_cast<float>(value);
  if (type == CUDNN_DATA_FLOAT)
    static_cast<float*>(memory)[i] = rounded;
  else
    static_cast<uint16_t*>(memory)[i] = type == CUDNN_DATA_BFLOAT16 ? ToBf16(rounded) : ToFp16(rounded);
}

// Calls term(index in x, index in filter, index in y) for all terms: NHWC and KRSC.
void ForEachTerm(const FakeTensor& x, const FakeTensor& f, const FakeTensor& y, const FakeConvolution& c,
                 const std::function<void(int64_t, int64_t, int64_t)>& term) {
  for (int n = 0; n < y.n; ++n)
    for (int oh = 0; oh < y.h; ++oh)
      for (int ow = 0; ow < y.w; ++ow)
        for (int k = 0; k < y.c; ++k)
          for (int r = 0; r < f.h; ++r)
            for (int s = 0; s < f.w; ++s)
              for (int ch = 0; ch < x.c; ++ch) {
                const int ih = oh * c.stride_h - c.pad_h + r, iw = ow * c.stride_w - c.pad_w + s;
                if (ih < 0 || iw < 0 || ih >= x.h || iw >= x.w) continue;
                term(((int64_t{n} * x.h + ih) * x.w + iw) * x.c + ch, ((int64_t{k} * f.h + r) * f.w + s) * x.c + ch,
                     ((int64_t{n} * y.h + oh) * y.w + ow) * y.c + k);
              }
}

// Computes tensor `result` as the sum over the terms of first * second.
struct FakeRun {
  FakeTensor x, filters, y;
  FakeConvolution convolution;
  // 0, 1 or 2: x, filters, y.
  int first_role, second_role;
  const void* first;
  const void* second;
  void* result;

  void Compute() const {
    const int result_role = 3 - first_role - second_role;
    const FakeTensor& out = result_role == 0 ? x : result_role == 1 ? filters : y;
    std::vector<double> sums(int64_t{out.n} * out.c * out.h * out.w);
    ForEachTerm(x, filters, y, convolution, [&](int64_t i, int64_t j, int64_t k) {
      const int64_t at[] = {i, j, k};
      sums[at[result_role]] +=
          static_cast<double>(Read(x.type, first, at[first_role])) * Read(x.type, second, at[second_role]);
    });
    for (size_t i = 0; i < sums.size(); ++i) Write(x.type, sums[i], result, i);
  }
};

cudnnStatus_t Run(int number, void* workspace, size_t bytes, const FakeRun& run) {
  for (const FakeAlgorithm& a : fake.algorithms) {
    if (a.number != number) continue;
    if (!a.works || workspace == nullptr || bytes < a.memory) return CUDNN_STATUS_NOT_SUPPORTED;
    fake.ran.push_back(number);
    fake.math.push_back(run.convolution.math);
    fake.types.push_back(run.x.type);
    for (const void* operand : {run.first, run.second, static_cast<const void*>(run.result)}) {
      fake.operands.push_back(operand);
    }
    emulator::Enqueue("cudnnConvolution", fake.stream, [run, time = a.milliseconds] {
      run.Compute();
      emulator::PassTime(time);
    });
    return CUDNN_STATUS_SUCCESS;
  }
  return CUDNN_STATUS_NOT_SUPPORTED;
}

template <typename Opaque>
FakeTensor Tensor(const Opaque* opaque) {
  return *reinterpret_cast<const FakeTensor*>(opaque);
}

FakeConvolution Convolution(const cudnnConvolutionStruct* opaque) {
  return *reinterpret_cast<const FakeConvolution*>(opaque);
}

using T = cudnnTensorDescriptor_t;
using F = cudnnFilterDescriptor_t;
using C = cudnnConvolutionDescriptor_t;

Cudnn MakeFakeTable() {
  Cudnn table;
  table.Create = [](cudnnHandle_t* handle) { return Make<int>(handle); };
  table.Destroy = [](cudnnHandle_t handle) { return Destroy<int>(handle); };
  table.SetStream = [](cudnnHandle_t, cudaStream_t stream) {
    fake.stream = stream;
    return CUDNN_STATUS_SUCCESS;
  };
  table.GetVersion = []() -> size_t { return 91900; };
  table.GetErrorString = [](cudnnStatus_t) { return "fake"; };
  table.CreateTensorDescriptor = [](T* made) { return Make<FakeTensor>(made); };
  table.DestroyTensorDescriptor = [](T made) { return Destroy<FakeTensor>(made); };
  table.SetTensor4dDescriptor = [](T made, cudnnTensorFormat_t format, cudnnDataType_t type, int n, int c, int h,
                                   int w) {
    EXPECT_EQ(format, CUDNN_TENSOR_NHWC);
    *As<FakeTensor>(made) = {type, n, c, h, w};
    return CUDNN_STATUS_SUCCESS;
  };
  table.CreateFilterDescriptor = [](F* made) { return Make<FakeTensor>(made); };
  table.DestroyFilterDescriptor = [](F made) { return Destroy<FakeTensor>(made); };
  table.SetFilter4dDescriptor = [](F made, cudnnDataType_t type, cudnnTensorFormat_t format, int k, int c, int h,
                                   int w) {
    EXPECT_EQ(format, CUDNN_TENSOR_NHWC);
    *As<FakeTensor>(made) = {type, k, c, h, w};
    return CUDNN_STATUS_SUCCESS;
  };
  table.CreateConvolutionDescriptor = [](C* made) { return Make<FakeConvolution>(made); };
  table.DestroyConvolutionDescriptor = [](C made) { return Destroy<FakeConvolution>(made); };
  table.SetConvolution2dDescriptor = [](C made, int pad_h, int pad_w, int u, int v, int dilation_h, int dilation_w,
                                        cudnnConvolutionMode_t mode, cudnnDataType_t compute) {
    EXPECT_EQ(dilation_h, 1);
    EXPECT_EQ(dilation_w, 1);
    EXPECT_EQ(mode, CUDNN_CROSS_CORRELATION);
    EXPECT_EQ(compute, CUDNN_DATA_FLOAT);
    *As<FakeConvolution>(made) = {pad_h, pad_w, u, v, CUDNN_DEFAULT_MATH};
    return CUDNN_STATUS_SUCCESS;
  };
  table.SetConvolutionMathType = [](C made, cudnnMathType_t math) {
    As<FakeConvolution>(made)->math = math;
    return CUDNN_STATUS_SUCCESS;
  };
  const auto suggest = [](auto, auto, auto, auto, auto, int most, int* count, auto* results) {
    return Suggest(most, count, results);
  };
  table.GetConvolutionForwardAlgorithm = suggest;
  table.GetConvolutionBackwardDataAlgorithm = suggest;
  table.GetConvolutionBackwardFilterAlgorithm = suggest;
  const auto workspace = [](auto, auto, auto, auto, auto, auto number, size_t* bytes) {
    return Workspace(number, bytes);
  };
  table.GetConvolutionForwardWorkspaceSize = workspace;
  table.GetConvolutionBackwardDataWorkspaceSize = workspace;
  table.GetConvolutionBackwardFilterWorkspaceSize = workspace;
  table.ConvolutionForward = [](auto, auto, T xd, auto x, F fd, auto f, C c, auto number, auto workspace, size_t bytes,
                                auto, T yd, auto y) {
    return Run(number, workspace, bytes, {Tensor(xd), Tensor(fd), Tensor(yd), Convolution(c), 0, 1, x, f, y});
  };
  table.ConvolutionBackwardData = [](auto, auto, F fd, auto f, T yd, auto dy, C c, auto number, auto workspace,
                                     size_t bytes, auto, T xd, auto dx) {
    return Run(number, workspace, bytes, {Tensor(xd), Tensor(fd), Tensor(yd), Convolution(c), 1, 2, f, dy, dx});
  };
  table.ConvolutionBackwardFilter = [](auto, auto, T xd, auto x, T yd, auto dy, C c, auto number, auto workspace,
                                       size_t bytes, auto, F fd, auto df) {
    return Run(number, workspace, bytes, {Tensor(xd), Tensor(fd), Tensor(yd), Convolution(c), 0, 2, x, dy, df});
  };
  return table;
}

class CudnnConvolutionTest : public ::testing::Test {
 protected:
  explicit CudnnConvolutionTest(const emulator::Settings& settings = {}) {
    fake = {};
    emulator::Reset(settings);
    stream_ = *MakeStream();
    memory_ = std::make_unique<MemoryPool>(*MemoryPool::Create(0, stream_.get()));
    halves_ = std::make_unique<HalfCopies>(memory_.get());
    gemm_ = *MakeGemm({}, "Emulated", memory_.get(), halves_.get());
    products_ = MakeIm2colConvolution(gemm_.get(), memory_.get());
    Open({});
  }

  void Open(const CudaOptions& options) {
    auto made = MakeCudnnConvolution(table_, {gemm_.get(), memory_.get(), halves_.get(), options, "Emulated"},
                                     MakeIm2colConvolution(gemm_.get(), memory_.get()));
    ASSERT_TRUE(made.ok()) << made.status();
    cudnn_ = *std::move(made);
  }

  std::vector<float> Random(int64_t n) {
    std::vector<float> values(n);
    for (float& value : values) value = std::uniform_real_distribution<float>(-1, 1)(random_);
    return values;
  }

  // Expects equal results of an operation of cuDNN and of products; the emulated GPU writes them into host memory.
  template <typename Operation, typename... Operands>
  void Compare(int64_t elements, double tolerance, Operation operation, const Operands&... operands) {
    std::vector<float> got(elements, 7.0f), want(elements, 9.0f);
    EXPECT_TRUE((*cudnn_.*operation)(stream_.get(), operands..., got.data()).ok());
    EXPECT_TRUE((*products_.*operation)(stream_.get(), operands..., want.data()).ok());
    EXPECT_EQ(cudaStreamSynchronize(stream_.get()), cudaSuccess);
    for (int64_t i = 0; i < elements; ++i) ASSERT_NEAR(got[i], want[i], tolerance * (1 + std::abs(want[i]))) << i;
  }

  // Expects all three directions to agree with products.
  void ExpectAsProducts(const ConvShape& shape, int64_t n, double tolerance) {
    using Conv = CudaConvolution;
    const int64_t in = n * shape.input.elements(), out = n * shape.output().elements();
    const int64_t weights = shape.filters * shape.filter_elements();
    const std::vector<float> x = Random(in), f = Random(weights), bias = Random(shape.filters), dy = Random(out);
    Compare(out, tolerance, &Conv::Forward, shape, n, x.data(), f.data(), bias.data());
    Compare(out, tolerance, &Conv::Forward, shape, n, x.data(), f.data(), nullptr);
    Compare(in, tolerance, &Conv::BackwardData, shape, n, dy.data(), f.data());
    Compare(weights, tolerance, &Conv::BackwardFilters, shape, n, x.data(), dy.data());
  }

  absl::Status Forward() {
    const std::vector<float> x(9, 1.0f), filters(4, 1.0f);
    std::vector<float> y(4);
    absl::Status status =
        cudnn_->Forward(stream_.get(), {{3, 3, 1}, {2, 2}, 1}, 1, x.data(), filters.data(), nullptr, y.data());
    EXPECT_EQ(cudaStreamSynchronize(stream_.get()), cudaSuccess);
    EXPECT_THAT(y, ElementsAre(4.0f, 4.0f, 4.0f, 4.0f));
    return status;
  }

  const Cudnn table_ = MakeFakeTable();
  std::mt19937 random_{1};
  Stream stream_;
  std::unique_ptr<MemoryPool> memory_;
  std::unique_ptr<HalfCopies> halves_;
  std::unique_ptr<Gemm> gemm_;
  std::unique_ptr<CudaConvolution> products_, cudnn_;
};

const ConvShape kShapes[] = {
    {{5, 7, 3}, {3, 3, 1, 1, 1, 1}, 4},
    // Every parameter differs between height and width.
    {{9, 6, 2}, {4, 3, 2, 3, 3, 1}, 5},
    {{4, 4, 8}, {}, 3},
    {{1, 8, 1}, {1, 5, 1, 2, 0, 2}, 1},
};

TEST_F(CudnnConvolutionTest, AgreesWithProductsInFloats) {
  fake.algorithms = {{1, CUDNN_DETERMINISTIC, 64, CUDNN_FMA_MATH}};
  for (const ConvShape& shape : kShapes) {
    for (const int64_t examples : {1, 3}) ExpectAsProducts(shape, examples, 1e-5);
  }
  EXPECT_THAT(fake.types, ::testing::Each(CUDNN_DATA_FLOAT));
  EXPECT_FALSE(fake.ran.empty());
}

TEST_F(CudnnConvolutionTest, AgreesWithProductsIn16Bits) {
  for (const auto& [precision, type, tolerance] :
       {std::tuple(Precision::kBf16, CUDNN_DATA_BFLOAT16, 1e-2), std::tuple(Precision::kFp16, CUDNN_DATA_HALF, 2e-3)}) {
    fake.types.clear();
    gemm_->SetPrecision(precision);
    cudnn_->SetPrecision(precision);
    for (const ConvShape& shape : kShapes) ExpectAsProducts(shape, 2, tolerance);
    EXPECT_FALSE(fake.types.empty());
    EXPECT_THAT(fake.types, ::testing::Each(type));
  }
}

// Three launches: rounding of the filters, cuDNN's kernel, bias.
TEST_F(CudnnConvolutionTest, ImagesOf16BitsGoInAndComeOutAsTheyLie) {
  const ConvShape shape = {{2, 2, 1}, {2, 2}, 2};
  const uint16_t one = ToBf16(1), two = ToBf16(2), three = ToBf16(3);
  const std::vector<uint16_t> x = {one, two, three, one}, dy = {two, three};
  const std::vector<float> filters = {1, 1, 1, 1, 0, 0, 0, -3}, bias = {100, 1};
  std::vector<uint16_t> y(2), dx(4);
  std::vector<float> dfilters(8);
  const auto in = [](const std::vector<uint16_t>& values) { return ConstElements(values.data(), ElementType::kBf16); };
  Open({.autotune = false});
  cudnn_->SetPrecision(Precision::kBf16);
  // The first call looks for an algorithm.
  const auto forward = [&] {
    return cudnn_->Forward(stream_.get(), shape, 1, in(x), filters.data(), bias.data(), {y.data(), ElementType::kBf16});
  };
  ASSERT_TRUE(forward().ok());
  const int before = emulator::Count().launches;
  fake.operands.clear();
  ASSERT_TRUE(forward().ok());
  EXPECT_EQ(emulator::Count().launches, before + 3);
  EXPECT_EQ(fake.operands.front(), x.data());
  EXPECT_EQ(fake.operands.back(), y.data());
  fake.operands.clear();
  ASSERT_TRUE(
      cudnn_->BackwardData(stream_.get(), shape, 1, in(dy), filters.data(), {dx.data(), ElementType::kBf16}).ok());
  EXPECT_EQ(fake.operands.at(1), dy.data());
  EXPECT_EQ(fake.operands.back(), dx.data());
  fake.operands.clear();
  ASSERT_TRUE(cudnn_->BackwardFilters(stream_.get(), shape, 1, in(x), in(dy), dfilters.data()).ok());
  EXPECT_EQ(fake.operands.at(0), x.data());
  EXPECT_EQ(fake.operands.at(1), dy.data());
  EXPECT_EQ(cudaStreamSynchronize(stream_.get()), cudaSuccess);
  EXPECT_THAT(y, ElementsAre(ToBf16(107), ToBf16(-2)));
  EXPECT_THAT(dx, ElementsAre(two, two, two, ToBf16(-7)));
  EXPECT_THAT(dfilters, ElementsAre(2, 4, 6, 2, 3, 6, 9, 3));
}

TEST_F(CudnnConvolutionTest, TakesTheFastestOfThoseThatGiveTheSameBits) {
  cudnn_->SetPrecision(Precision::kTf32);
  fake.algorithms = {{0, CUDNN_NON_DETERMINISTIC, 0, CUDNN_TENSOR_OP_MATH, 0.1f},
                     {1, CUDNN_DETERMINISTIC, 64, CUDNN_TENSOR_OP_MATH, 3.0f},
                     {2, CUDNN_DETERMINISTIC, 64, CUDNN_TENSOR_OP_MATH, 1.0f},
                     {3, CUDNN_DETERMINISTIC, size_t{1} << 30, CUDNN_TENSOR_OP_MATH, 0.2f},
                     {4, CUDNN_DETERMINISTIC, 64, CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION, 0.3f},
                     {5, CUDNN_DETERMINISTIC, 64, CUDNN_TENSOR_OP_MATH, 0.4f, false}};
  EXPECT_TRUE(Forward().ok());
  EXPECT_THAT(fake.ran, ::testing::IsSupersetOf({1, 2}));
  EXPECT_THAT(fake.ran, ::testing::Each(::testing::AnyOf(1, 2)));
  fake.ran.clear();
  EXPECT_TRUE(Forward().ok());
  EXPECT_THAT(fake.ran, ElementsAre(2));
  EXPECT_EQ(fake.suggested, 1);
}

TEST_F(CudnnConvolutionTest, ReservesOnceWhatItsAlgorithmsNeed) {
  cudnn_->SetPrecision(Precision::kTf32);
  fake.algorithms = {{1, CUDNN_DETERMINISTIC, 64},
                     {2, CUDNN_DETERMINISTIC, 4096},
                     {3, CUDNN_NON_DETERMINISTIC, 8192},
                     {4, CUDNN_DETERMINISTIC, size_t{513} << 20}};
  ASSERT_TRUE(cudnn_->Reserve({{{3, 3, 1}, {2, 2}, 1}, kShapes[0]}, 8).ok());
  EXPECT_EQ(cudnn_->workspace_bytes(), 4096);
  const size_t held = emulator::Count().device_bytes;
  EXPECT_TRUE(Forward().ok());
  EXPECT_THAT(fake.ran, ::testing::IsSupersetOf({1, 2}));
  EXPECT_EQ(emulator::Count().device_bytes, held);
  EXPECT_EQ(cudnn_->workspace_bytes(), 4096);
}

class SmallGpuTest : public CudnnConvolutionTest {
 protected:
  SmallGpuTest() : CudnnConvolutionTest({.memory_bytes = 1 << 20}) {}
};

TEST_F(SmallGpuTest, ReservesAtMostHalfOfTheFreeMemory) {
  fake.algorithms = {{1, CUDNN_DETERMINISTIC, 512 << 10, CUDNN_FMA_MATH},
                     {2, CUDNN_DETERMINISTIC, (512 << 10) + 1, CUDNN_FMA_MATH}};
  ASSERT_TRUE(cudnn_->Reserve({kShapes[0]}, 1).ok());
  EXPECT_EQ(cudnn_->workspace_bytes(), 512 << 10);
}

TEST_F(CudnnConvolutionTest, AlgorithmsThatNeedMoreThanIsReservedAreLeftOut) {
  cudnn_->SetPrecision(Precision::kTf32);
  ASSERT_TRUE(cudnn_->Reserve({kShapes[0]}, 1).ok());
  fake.algorithms = {{1, CUDNN_DETERMINISTIC, 64, CUDNN_TENSOR_OP_MATH, 2.0f},
                     {2, CUDNN_DETERMINISTIC, 65, CUDNN_TENSOR_OP_MATH, 1.0f}};
  EXPECT_TRUE(Forward().ok());
  EXPECT_THAT(fake.ran, ::testing::Each(1));
}

TEST_F(CudnnConvolutionTest, AShapeWhoseAlgorithmsAllNeedMoreStillUsesThem) {
  ASSERT_TRUE(cudnn_->Reserve({kShapes[0]}, 1).ok());
  fake.algorithms = {{2, CUDNN_DETERMINISTIC, 65, CUDNN_FMA_MATH}};
  EXPECT_TRUE(Forward().ok());
  EXPECT_FALSE(fake.ran.empty());
}

TEST_F(CudnnConvolutionTest, WithoutAutotuningTakesTheFirstThatWorks) {
  Open({.autotune = false});
  cudnn_->SetPrecision(Precision::kTf32);
  fake.algorithms = {{0, CUDNN_DETERMINISTIC, 64, CUDNN_TENSOR_OP_MATH, 1.0f, false},
                     {1, CUDNN_DETERMINISTIC, 64, CUDNN_TENSOR_OP_MATH, 2.0f},
                     {2, CUDNN_DETERMINISTIC, 64, CUDNN_TENSOR_OP_MATH, 1.0f}};
  EXPECT_TRUE(Forward().ok());
  EXPECT_THAT(fake.ran, ::testing::Each(1));
}

TEST_F(CudnnConvolutionTest, WhatWasMeasuredIsTakenInTheNextRun) {
  const std::string folder = ::testing::TempDir() + "/cudnn_convolution_test";
  std::filesystem::remove_all(folder);
  fake.algorithms = {{1, CUDNN_DETERMINISTIC, 64, CUDNN_DEFAULT_MATH, 2.0f},
                     {2, CUDNN_DETERMINISTIC, 64, CUDNN_DEFAULT_MATH, 1.0f}};
  Open({.cache_folder = folder});
  EXPECT_TRUE(Forward().ok());
  EXPECT_EQ(fake.suggested, 1);
  fake.ran.clear();
  Open({.cache_folder = folder});
  EXPECT_TRUE(Forward().ok());
  EXPECT_EQ(fake.suggested, 1);
  EXPECT_THAT(fake.ran, ::testing::Each(2));
  // An algorithm that this cuDNN lacks is replaced by a new measurement.
  fake.algorithms.pop_back();
  Open({.cache_folder = folder});
  EXPECT_TRUE(Forward().ok());
  EXPECT_EQ(fake.suggested, 2);
}

TEST_F(CudnnConvolutionTest, Fp32UsesNoTensorCores) {
  fake.algorithms = {{1, CUDNN_DETERMINISTIC, 64, CUDNN_TENSOR_OP_MATH, 0.5f},
                     {2, CUDNN_DETERMINISTIC, 64, CUDNN_DEFAULT_MATH, 1.0f}};
  EXPECT_TRUE(Forward().ok());
  EXPECT_THAT(fake.ran, ::testing::Each(2));
  EXPECT_THAT(fake.math, ::testing::Each(CUDNN_FMA_MATH));
}

TEST_F(CudnnConvolutionTest, WhatCudnnCannotComputeIsComputedAsProducts) {
  fake.suggesting = CUDNN_STATUS_NOT_SUPPORTED;
  for (const Precision precision : {Precision::kFp32, Precision::kBf16}) {
    gemm_->SetPrecision(precision);
    cudnn_->SetPrecision(precision);
    for (int i = 0; i < 2; ++i) ExpectAsProducts(kShapes[0], 2, 1e-5);
  }
  EXPECT_THAT(fake.ran, IsEmpty());
  // One query for each direction and precision.
  EXPECT_EQ(fake.suggested, 6);
}

TEST_F(CudnnConvolutionTest, WhereAllAlgorithmsFailProductsAreTaken) {
  fake.algorithms = {{1, CUDNN_DETERMINISTIC, 64, CUDNN_FMA_MATH, 1.0f, false}};
  ExpectAsProducts(kShapes[0], 2, 1e-5);
  EXPECT_THAT(fake.ran, IsEmpty());
}

TEST_F(CudnnConvolutionTest, NoExamplesGiveFiltersNoGradient) {
  std::vector<float> gradient(4, 5.0f);
  EXPECT_TRUE(
      cudnn_->BackwardFilters(stream_.get(), {{3, 3, 1}, {2, 2}, 1}, 0, nullptr, nullptr, gradient.data()).ok());
  EXPECT_EQ(cudaStreamSynchronize(stream_.get()), cudaSuccess);
  EXPECT_THAT(gradient, ElementsAre(0.0f, 0.0f, 0.0f, 0.0f));
}

TEST_F(CudnnConvolutionTest, WithoutCudnnProductsAreTakenWithOneWarning) {
  const CudaOptions options;
  const std::string name = "Emulated";
  const ConvolutionParts parts = {gemm_.get(), memory_.get(), halves_.get(), options, name};
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(MakeConvolutionWith(&table_, parts)->Describe(), "cuDNN 9.19.0");
  EXPECT_EQ(MakeConvolutionWith(absl::FailedPreconditionError("cuDNN not found"), parts)->Describe(),
            "convolutions as products");
  Cudnn broken = table_;
  broken.Create = [](cudnnHandle_t*) { return CUDNN_STATUS_NOT_INITIALIZED; };
  EXPECT_EQ(MakeConvolutionWith(&broken, parts)->Describe(), "convolutions as products");
  EXPECT_EQ(
      ::testing::internal::GetCapturedStderr(),
      "warning: convolutions are computed as matrix products, which take more time and memory: cuDNN not found\n");
}

TEST_F(CudnnConvolutionTest, NamesItsVersion) { EXPECT_EQ(cudnn_->Describe(), "cuDNN 9.19.0"); }

}  // namespace
}  // namespace ballast
