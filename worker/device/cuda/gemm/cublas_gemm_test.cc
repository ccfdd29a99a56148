// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/gemm/cublas_gemm.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "worker/device/cuda/emulator/emulated_gpu.h"
#include "worker/device/cuda/kernels/half_math.h"
#include "worker/device/cuda/stream/cuda_status.h"

// Fake tables replace cuBLASLt and cuBLAS. They compute products as told, column-major, by definition, and record
// their calls. So these tests check the arguments that we pass to the libraries and our handling of their results.
namespace ballast {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Memory layout of a column-major matrix.
struct FakeLayout {
  cudaDataType_t type;
  uint64_t rows, columns;
  int64_t leading;
};

struct FakeProduct {
  cublasComputeType_t compute;
  cublasOperation_t first = CUBLAS_OP_N, second = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const float* bias = nullptr;
};

// Results that the fakes return, and calls that they record.
struct Fake {
  // Duration of each of cuBLASLt's algorithms; they support fusing only if `fuses`.
  std::vector<float> milliseconds = {1.0f};
  bool fuses = true;
  // True if the fused ReLU of NaN is 0.
  bool relu_hides_nan = false;
  cublasStatus_t suggesting = CUBLAS_STATUS_SUCCESS;
  absl::Status loading;
  cublasStatus_t multiplying = CUBLAS_STATUS_SUCCESS;
  int suggested = 0;
  // Algorithm and epilogue of each cuBLASLt product.
  std::vector<int> ran;
  std::vector<cublasLtEpilogue_t> epilogues;
  int loaded = 0;
  // Compute and data types of each cuBLAS product.
  std::vector<cublasComputeType_t> older;
  std::vector<cudaDataType_t> types;
  cudaStream_t stream = nullptr;
  size_t workspace_bytes = 0;
};

Fake fake;

template <typename To, typename From>
To* As(From* opaque) {
  return reinterpret_cast<To*>(const_cast<std::remove_const_t<From>*>(opaque));
}

template <typename Value, typename Opaque, typename... Arguments>
cublasStatus_t Make(Opaque** made, Arguments... arguments) {
  *made = As<Opaque>(new Value{arguments...});
  return CUBLAS_STATUS_SUCCESS;
}

template <typename Value, typename Opaque>
cublasStatus_t Destroy(Opaque* made) {
  delete As<Value>(made);
  return CUBLAS_STATUS_SUCCESS;
}

struct FakeFactor {
  const void* values;
  cudaDataType_t type;
  int64_t leading;
  cublasOperation_t operation;

  double At(int64_t i, int64_t j) const {
    const int64_t place = operation == CUBLAS_OP_N ? j * leading + i : i * leading + j;
    if (type == CUDA_R_32F) return static_cast<const float*>(values)[place];
    const uint16_t half = static_cast<const uint16_t*>(values)[place];
    return type == CUDA_R_16BF ? FromBf16(half) : FromFp16(half);
  }
};

struct FakeRun {
  FakeFactor first, second;
  int64_t rows, columns, depth;
  float alpha, beta;
  float* result;
  int64_t leading;

  // `least` is the ReLU of NaN.
  void Compute(const float* bias, bool relu, float least = NAN) const {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        double sum = 0;
        for (int64_t k = 0; k < depth; ++k) sum += first.At(i, k) * second.At(k, j);
        float& c = result[j * leading + i];
        float value = static_cast<float>(alpha * sum + (beta == 0.0f ? 0.0f : beta * c));
        if (bias != nullptr) value += bias[i];
        c = !relu ? value : std::isnan(value) ? least : std::max(value, 0.0f);
      }
    }
  }
};

bool HasBias(cublasLtEpilogue_t e) { return e == CUBLASLT_EPILOGUE_BIAS || e == CUBLASLT_EPILOGUE_RELU_BIAS; }
bool HasRelu(cublasLtEpilogue_t e) { return e == CUBLASLT_EPILOGUE_RELU || e == CUBLASLT_EPILOGUE_RELU_BIAS; }

cublasStatus_t MultiplyLt(const FakeProduct& product, const void* alpha, const void* a, const FakeLayout& la,
                          const void* b, const FakeLayout& lb, const void* beta, void* d, const FakeLayout& ld,
                          int algorithm, cudaStream_t stream) {
  EXPECT_EQ(ld.type, CUDA_R_32F);
  fake.ran.push_back(algorithm);
  fake.epilogues.push_back(product.epilogue);
  const FakeRun run = {{a, la.type, la.leading, product.first},
                       {b, lb.type, lb.leading, product.second},
                       static_cast<int64_t>(ld.rows),
                       static_cast<int64_t>(ld.columns),
                       static_cast<int64_t>(product.first == CUBLAS_OP_N ? la.columns : la.rows),
                       *static_cast<const float*>(alpha),
                       *static_cast<const float*>(beta),
                       static_cast<float*>(d),
                       ld.leading};
  emulator::Enqueue(
      "cublasLtMatmul", stream, [run, product, time = fake.milliseconds.at(algorithm), hides = fake.relu_hides_nan] {
        run.Compute(HasBias(product.epilogue) ? product.bias : nullptr, HasRelu(product.epilogue), hides ? 0.0f : NAN);
        emulator::PassTime(time);
      });
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t Suggest(const FakeProduct& product, int most, cublasLtMatmulHeuristicResult_t* results, int* count) {
  ++fake.suggested;
  *count = 0;
  if (fake.suggesting != CUBLAS_STATUS_SUCCESS) return fake.suggesting;
  if (!fake.fuses && product.epilogue != CUBLASLT_EPILOGUE_DEFAULT) return CUBLAS_STATUS_NOT_SUPPORTED;
  for (size_t i = 0; i < fake.milliseconds.size() && *count < most; ++i) {
    cublasLtMatmulHeuristicResult_t& result = results[(*count)++];
    result = {};
    result.algo.data[0] = i;
  }
  return CUBLAS_STATUS_SUCCESS;
}

CublasLt MakeFakeLt() {
  CublasLt lt = {};
  lt.Create = [](cublasLtHandle_t* handle) { return Make<int>(handle); };
  lt.Destroy = [](cublasLtHandle_t handle) { return Destroy<int>(handle); };
  lt.GetVersion = []() -> size_t { return 130001; };
  lt.GetStatusString = [](cublasStatus_t) { return "fake"; };
  lt.MatmulDescCreate = [](auto* made, auto compute, auto) { return Make<FakeProduct>(made, compute); };
  lt.MatmulDescDestroy = [](cublasLtMatmulDesc_t made) { return Destroy<FakeProduct>(made); };
  lt.MatmulDescSetAttribute = [](cublasLtMatmulDesc_t made, cublasLtMatmulDescAttributes_t attribute, const void* value,
                                 size_t bytes) {
    FakeProduct& product = *As<FakeProduct>(made);
    void* const to = attribute == CUBLASLT_MATMUL_DESC_TRANSA     ? static_cast<void*>(&product.first)
                     : attribute == CUBLASLT_MATMUL_DESC_TRANSB   ? static_cast<void*>(&product.second)
                     : attribute == CUBLASLT_MATMUL_DESC_EPILOGUE ? static_cast<void*>(&product.epilogue)
                                                                  : static_cast<void*>(&product.bias);
    std::memcpy(to, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
  };
  lt.MatmulPreferenceCreate = [](auto* made) { return Make<int>(made); };
  lt.MatmulPreferenceDestroy = [](cublasLtMatmulPreference_t made) { return Destroy<int>(made); };
  lt.MatmulPreferenceSetAttribute = [](auto...) { return CUBLAS_STATUS_SUCCESS; };
  lt.MatrixLayoutCreate = [](auto* made, auto... layout) { return Make<FakeLayout>(made, layout...); };
  lt.MatrixLayoutDestroy = [](cublasLtMatrixLayout_t made) { return Destroy<FakeLayout>(made); };
  lt.MatmulAlgoGetHeuristic = [](auto, auto product, auto, auto, auto, auto, auto, int most, auto* results,
                                 auto* count) { return Suggest(*As<FakeProduct>(product), most, results, count); };
  lt.MatmulAlgoCheck = [](auto, auto, auto, auto, auto, auto, const cublasLtMatmulAlgo_t* algorithm, auto) {
    return algorithm->data[0] < fake.milliseconds.size() ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
  };
  lt.Matmul = [](cublasLtHandle_t, cublasLtMatmulDesc_t product, const void* alpha, const void* a,
                 cublasLtMatrixLayout_t la, const void* b, cublasLtMatrixLayout_t lb, const void* beta, const void* c,
                 cublasLtMatrixLayout_t, void* d, cublasLtMatrixLayout_t ld, const cublasLtMatmulAlgo_t* algorithm,
                 void*, size_t, cudaStream_t stream) {
    EXPECT_EQ(c, d);
    return MultiplyLt(*As<FakeProduct>(product), alpha, a, *As<FakeLayout>(la), b, *As<FakeLayout>(lb), beta, d,
                      *As<FakeLayout>(ld), static_cast<int>(algorithm->data[0]), stream);
  };
  return lt;
}

Cublas MakeFakeCublas() {
  Cublas cublas = {};
  cublas.Create = [](cublasHandle_t* handle) { return Make<int>(handle); };
  cublas.Destroy = [](cublasHandle_t handle) { return Destroy<int>(handle); };
  // Forgets the workspace, like the real function.
  cublas.SetStream = [](cublasHandle_t, cudaStream_t stream) {
    fake.stream = stream;
    fake.workspace_bytes = 0;
    return CUBLAS_STATUS_SUCCESS;
  };
  cublas.SetWorkspace = [](cublasHandle_t, void* memory, size_t bytes) {
    EXPECT_NE(memory, nullptr);
    fake.workspace_bytes = bytes;
    return CUBLAS_STATUS_SUCCESS;
  };
  cublas.GemmEx = [](cublasHandle_t, cublasOperation_t first, cublasOperation_t second, int m, int n, int k,
                     const void* alpha, const void* a, cudaDataType a_type, int lda, const void* b, cudaDataType b_type,
                     int ldb, const void* beta, void* c, cudaDataType c_type, int ldc, cublasComputeType_t compute,
                     cublasGemmAlgo_t) {
    if (fake.multiplying != CUBLAS_STATUS_SUCCESS) return fake.multiplying;
    EXPECT_EQ(c_type, CUDA_R_32F);
    EXPECT_EQ(a_type, b_type);
    fake.older.push_back(compute);
    fake.types.push_back(a_type);
    const FakeRun run = {
        {a, a_type, lda, first},          {b, b_type, ldb, second}, m,  n, k, *static_cast<const float*>(alpha),
        *static_cast<const float*>(beta), static_cast<float*>(c),   ldc};
    emulator::Enqueue("cublasGemmEx", fake.stream, [run] { run.Compute(nullptr, false); });
    return CUBLAS_STATUS_SUCCESS;
  };
  return cublas;
}

const CublasLt& Lt() {
  static const CublasLt lt = MakeFakeLt();
  return lt;
}

absl::StatusOr<const Cublas*> LoadFakeCublas() {
  static const Cublas cublas = MakeFakeCublas();
  ++fake.loaded;
  if (!fake.loading.ok()) return fake.loading;
  return &cublas;
}

class CublasGemmTest : public ::testing::Test {
 protected:
  CublasGemmTest() {
    fake = {};
    emulator::Reset({});
    stream_ = *MakeStream();
    memory_ = std::make_unique<MemoryPool>(*MemoryPool::Create(0, stream_.get()));
    halves_ = std::make_unique<HalfCopies>(memory_.get());
    Open({.autotune = false});
  }

  void Open(const CudaOptions& options) {
    auto made = MakeCublasGemm({Lt(), LoadFakeCublas}, options, "Emulated", memory_.get(), halves_.get());
    ASSERT_TRUE(made.ok()) << made.status();
    gemm_ = *std::move(made);
  }

  std::vector<float> Random(int64_t n) {
    std::vector<float> values(n);
    for (float& value : values) value = std::uniform_real_distribution<float>(-1, 1)(random_);
    return values;
  }

  // Memory of the GPU with these values.
  absl::StatusOr<Scratch> Place(const std::vector<float>& values) {
    absl::StatusOr<Scratch> made = Scratch::Make(memory_.get(), values.size() * sizeof(float));
    EXPECT_EQ(cudaStreamSynchronize(stream_.get()), cudaSuccess);
    std::copy(values.begin(), values.end(), made->floats());
    return made;
  }

  // Expects a product of these sizes, with bias and ReLU as given, to match its definition.
  void ExpectProduct(GemmCall call, bool biased, double tolerance) {
    const std::vector<float> a = Random(call.rows * call.depth), b = Random(call.depth * call.columns);
    const std::vector<float> bias = Random(call.columns), before = Random(call.rows * call.columns);
    const absl::StatusOr<Scratch> c = Place(before);
    call.a = a.data();
    call.b = b.data();
    call.c = c->floats();
    if (biased) call.bias = bias.data();
    const absl::Status status = gemm_->Multiply(stream_.get(), call);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(cudaStreamSynchronize(stream_.get()), cudaSuccess);
    for (int64_t i = 0; i < call.rows; ++i) {
      for (int64_t j = 0; j < call.columns; ++j) {
        double sum = 0;
        for (int64_t k = 0; k < call.depth; ++k) {
          sum += double{a[call.a_transposed ? k * call.rows + i : i * call.depth + k]} *
                 b[call.b_transposed ? j * call.depth + k : k * call.columns + j];
        }
        double want = call.alpha * sum + call.beta * before[i * call.columns + j] + (biased ? bias[j] : 0.0f);
        if (call.relu) want = std::max(want, 0.0);
        ASSERT_NEAR(c->floats()[i * call.columns + j], want, tolerance) << i << ", " << j;
      }
    }
  }

  // All transposes, with and without bias and ReLU.
  void ExpectProducts(double tolerance) {
    for (const auto& [rows, columns, depth] : {std::tuple(1, 1, 1), std::tuple(3, 5, 2), std::tuple(4, 2, 7)}) {
      for (const bool a_transposed : {false, true}) {
        for (const bool b_transposed : {false, true}) {
          GemmCall call = {.rows = rows, .columns = columns, .depth = depth};
          call.a_transposed = a_transposed;
          call.b_transposed = b_transposed;
          ExpectProduct(call, false, tolerance);
          call.relu = true;
          ExpectProduct(call, true, tolerance);
          call.relu = false;
          ExpectProduct(call, true, tolerance);
          call.alpha = 0.5f;
          call.beta = 2.0f;
          ExpectProduct(call, false, tolerance);
        }
      }
    }
  }

  // Computes six_, the product of the 1x1 matrices 2 and 3.
  absl::Status MultiplyTwoByThree() {
    const float two = 2.0f, three = 3.0f;
    const absl::Status status =
        gemm_->Multiply(stream_.get(), {.rows = 1, .columns = 1, .depth = 1, .a = &two, .b = &three, .c = &six_});
    EXPECT_EQ(cudaStreamSynchronize(stream_.get()), cudaSuccess);
    return status;
  }

  float six_ = 0;
  std::mt19937 random_{1};
  Stream stream_;
  std::unique_ptr<MemoryPool> memory_;
  std::unique_ptr<HalfCopies> halves_;
  std::unique_ptr<Gemm> gemm_;
};

TEST_F(CublasGemmTest, CublasLtComputesWithBiasAndReluFused) {
  ExpectProducts(1e-5);
  EXPECT_THAT(fake.epilogues, ::testing::IsSupersetOf(
                                  {CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_RELU_BIAS}));
  EXPECT_EQ(fake.loaded, 0);
}

TEST_F(CublasGemmTest, WhatCublasLtCannotFuseFollowsItsProduct) {
  fake.fuses = false;
  ExpectProducts(1e-5);
  EXPECT_THAT(fake.epilogues, Each(CUBLASLT_EPILOGUE_DEFAULT));
  EXPECT_EQ(fake.loaded, 0);
}

TEST_F(CublasGemmTest, AReluThatHidesNanFollowsItsProductAndBias) {
  fake.relu_hides_nan = true;
  const float minus_two = -2.0f, nan = NAN, bias = 1.0f;
  const absl::StatusOr<Scratch> c = Place({0.0f});
  GemmCall call = {.rows = 1, .columns = 1, .depth = 1, .a = &minus_two, .b = &nan, .c = c->floats(), .bias = &bias};
  call.relu = true;
  for (int i = 0; i < 2; ++i) {
    fake.epilogues.clear();
    EXPECT_TRUE(gemm_->Multiply(stream_.get(), call).ok());
    EXPECT_EQ(cudaStreamSynchronize(stream_.get()), cudaSuccess);
    EXPECT_TRUE(std::isnan(*c->floats()));
  }
  EXPECT_THAT(fake.epilogues, ElementsAre(CUBLASLT_EPILOGUE_BIAS));
  ExpectProducts(1e-5);
}

TEST_F(CublasGemmTest, AReluThatPassesNanIsTriedOnceAndStaysFused) {
  const float two = 2.0f, nan = NAN;
  const absl::StatusOr<Scratch> c = Place({0.0f});
  GemmCall call = {.rows = 1, .columns = 1, .depth = 1, .a = &two, .b = &nan, .c = c->floats()};
  call.relu = true;
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(gemm_->Multiply(stream_.get(), call).ok());
  EXPECT_EQ(cudaStreamSynchronize(stream_.get()), cudaSuccess);
  EXPECT_TRUE(std::isnan(*c->floats()));
  // The attempt and two products.
  EXPECT_THAT(fake.epilogues, ElementsAre(CUBLASLT_EPILOGUE_RELU, CUBLASLT_EPILOGUE_RELU, CUBLASLT_EPILOGUE_RELU));
}

TEST_F(CublasGemmTest, WhatCublasLtHasNoAlgorithmForIsComputedByCublas) {
  fake.milliseconds.clear();
  ExpectProducts(1e-5);
  EXPECT_THAT(fake.ran, IsEmpty());
  // 3 shapes, 4 transposes, 4 kinds of call.
  EXPECT_EQ(fake.older.size(), 48);
  EXPECT_THAT(fake.older, Each(CUBLAS_COMPUTE_32F));
  EXPECT_THAT(fake.types, Each(CUDA_R_32F));
}

TEST_F(CublasGemmTest, WhatCublasLtDoesNotSupportIsComputedByCublas) {
  fake.suggesting = CUBLAS_STATUS_NOT_SUPPORTED;
  ExpectProducts(1e-5);
  EXPECT_EQ(fake.older.size(), 48);
}

TEST_F(CublasGemmTest, CublasComputesInThePrecisionThatIsSet) {
  fake.milliseconds.clear();
  for (const auto& [precision, compute, type, tolerance] :
       {std::tuple(Precision::kTf32, CUBLAS_COMPUTE_32F_FAST_TF32, CUDA_R_32F, 1e-5),
        std::tuple(Precision::kBf16, CUBLAS_COMPUTE_32F, CUDA_R_16BF, 5e-2),
        std::tuple(Precision::kFp16, CUBLAS_COMPUTE_32F, CUDA_R_16F, 1e-2)}) {
    fake.older.clear();
    fake.types.clear();
    gemm_->SetPrecision(precision);
    ExpectProducts(tolerance);
    EXPECT_EQ(fake.older.size(), 48);
    EXPECT_THAT(fake.older, Each(compute));
    EXPECT_THAT(fake.types, Each(type));
  }
}

TEST_F(CublasGemmTest, CublasIsOpenedOnceAndCublasLtAskedOnceForEachShape) {
  fake.milliseconds.clear();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(MultiplyTwoByThree().ok());
  EXPECT_EQ(six_, 6.0f);
  EXPECT_EQ(fake.older.size(), 3);
  EXPECT_EQ(fake.loaded, 1);
  EXPECT_EQ(fake.suggested, 1);
}

TEST_F(CublasGemmTest, CublasHasTheStreamAndTheWorkspaceInEachProduct) {
  fake.milliseconds.clear();
  for (int i = 0; i < 2; ++i) {
    fake.stream = nullptr;
    fake.workspace_bytes = 0;
    EXPECT_TRUE(MultiplyTwoByThree().ok());
    EXPECT_EQ(fake.stream, stream_.get());
    EXPECT_EQ(fake.workspace_bytes, gemm_->workspace_bytes());
  }
}

TEST_F(CublasGemmTest, ACublasThatIsMissingIsNamed) {
  fake.milliseconds.clear();
  fake.loading = absl::FailedPreconditionError("cuBLAS 13: libcublas.so.13 is missing");
  EXPECT_EQ(MultiplyTwoByThree(), fake.loading);
  // After the library appears, products succeed.
  fake.loading = absl::OkStatus();
  EXPECT_TRUE(MultiplyTwoByThree().ok());
  EXPECT_EQ(six_, 6.0f);
}

TEST_F(CublasGemmTest, AnErrorOfCublasIsNamedByItsCall) {
  fake.milliseconds.clear();
  fake.multiplying = CUBLAS_STATUS_EXECUTION_FAILED;
  EXPECT_EQ(MultiplyTwoByThree(), absl::InternalError("cuda device: cublasGemmEx: error 13, fake"));
  fake.multiplying = CUBLAS_STATUS_ALLOC_FAILED;
  EXPECT_EQ(MultiplyTwoByThree().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(CublasGemmTest, AnErrorOfCublasLtIsNoReasonToAskCublas) {
  fake.suggesting = CUBLAS_STATUS_INTERNAL_ERROR;
  const absl::Status status = MultiplyTwoByThree();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(status.message(), HasSubstr("cublasLtMatmulAlgoGetHeuristic: error 14"));
  EXPECT_EQ(fake.loaded, 0);
}

TEST_F(CublasGemmTest, AProductTooLargeForCublasIsRefused) {
  fake.milliseconds.clear();
  EXPECT_EQ(gemm_->Multiply(stream_.get(), {.rows = int64_t{1} << 31, .columns = 1, .depth = 1, .beta = 0.0f}),
            absl::UnimplementedError(
                "cuda device: product: got a factor with 2147483648 rows or columns, want at most 2147483647"));
  EXPECT_THAT(fake.older, IsEmpty());
}

TEST_F(CublasGemmTest, WithoutAutotuningCublasLtsFirstAlgorithmIsTaken) {
  fake.milliseconds = {3.0f, 1.0f};
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(MultiplyTwoByThree().ok());
  EXPECT_THAT(fake.ran, ElementsAre(0, 0));
}

TEST_F(CublasGemmTest, TheFastestOfCublasLtsAlgorithmsIsTakenAndInTheNextRunAsWell) {
  const std::string folder = ::testing::TempDir() + "/cublas_gemm_test";
  std::filesystem::remove_all(folder);
  fake.milliseconds = {3.0f, 1.0f, 2.0f};
  Open({.autotune = true, .cache_folder = folder});
  EXPECT_TRUE(MultiplyTwoByThree().ok());
  EXPECT_THAT(fake.ran, ::testing::IsSupersetOf({0, 1, 2}));
  for (int i = 0; i < 2; ++i) {
    fake.ran.clear();
    EXPECT_TRUE(MultiplyTwoByThree().ok());
    EXPECT_THAT(fake.ran, ElementsAre(1));
    EXPECT_EQ(six_, 6.0f);
    Open({.autotune = true, .cache_folder = folder});
  }
  EXPECT_EQ(fake.suggested, 1);
}

}  // namespace
}  // namespace ballast
