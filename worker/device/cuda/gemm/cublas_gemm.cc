// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/gemm/cublas_gemm.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "worker/device/cuda/kernels/activation.h"
#include "worker/device/cuda/kernels/add_bias.h"
#include "worker/device/cuda/kernels/elements.h"
#include "worker/device/cuda/library/algorithm_cache.h"
#include "worker/device/cuda/memory/memory_pool.h"
#include "worker/device/cuda/stream/cuda_status.h"
#include "worker/device/cuda/stream/stream_time.h"

namespace ballast {
namespace {

// Recommended by NVIDIA for Hopper.
constexpr size_t kWorkspaceBytes = size_t{32} << 20;
// Number of the library's suggestions to measure.
constexpr int kCandidates = 8;

// Owns a cuBLASLt object; the deleter is the table's function that destroys it.
template <typename T>
using Owned = std::unique_ptr<T, cublasStatus_t (*)(T*)>;

// Arguments of a product for cuBLASLt. Its matrices are column-major: our row-major memory is their transpose. So
// c = a b is computed as c^T = b^T a^T: its first factor is our b, its second our a, its rows our columns. Only this
// struct knows that.
struct ColumnMajorCall {
  cublasOperation_t first_operation, second_operation;
  // Memory sizes: rows as cuBLASLt counts them (the distance between columns), and columns.
  uint64_t first_rows, first_columns;
  uint64_t second_rows, second_columns;
  uint64_t result_rows, result_columns;

  explicit ColumnMajorCall(const GemmCall& call)
      : first_operation(call.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N),
        second_operation(call.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N),
        first_rows(call.b_transposed ? call.depth : call.columns),
        first_columns(call.b_transposed ? call.columns : call.depth),
        second_rows(call.a_transposed ? call.rows : call.depth),
        second_columns(call.a_transposed ? call.depth : call.rows),
        result_rows(call.columns),
        result_columns(call.rows) {}
};

// Largest power of two, up to 256, that divides the address.
uint32_t AlignmentOf(const void* address) {
  const uintptr_t low = reinterpret_cast<uintptr_t>(address) | 256;
  return static_cast<uint32_t>(low & -low);
}

cublasLtEpilogue_t EpilogueOf(const GemmCall& call) {
  if (call.bias != nullptr) return call.relu ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_BIAS;
  return call.relu ? CUBLASLT_EPILOGUE_RELU : CUBLASLT_EPILOGUE_DEFAULT;
}

// cuBLASLt's settings for a precision.
struct Arithmetic {
  const char* name;
  cublasComputeType_t compute;
  // Type of the factors in the multiplication.
  cudaDataType_t factor;
};

Arithmetic ArithmeticOf(Precision precision) {
  switch (precision) {
    case Precision::kFp32:
      break;
    case Precision::kTf32:
      return {"tf32", CUBLAS_COMPUTE_32F_FAST_TF32, CUDA_R_32F};
    case Precision::kBf16:
      return {"bf16", CUBLAS_COMPUTE_32F, CUDA_R_16BF};
    case Precision::kFp16:
      return {"fp16", CUBLAS_COMPUTE_32F, CUDA_R_16F};
  }
  return {"fp32", CUBLAS_COMPUTE_32F, CUDA_R_32F};
}

// Operands of a product: the factors and bias of a call, or their copies in 16 bits.
struct Factors {
  const void* a;
  const void* b;
  // Has the result's type if the product adds it.
  const void* bias;
};

cudaDataType_t TypeOf(ElementType type) {
  switch (type) {
    case ElementType::kFp32:
      break;
    case ElementType::kBf16:
      return CUDA_R_16BF;
    case ElementType::kFp16:
      return CUDA_R_16F;
  }
  return CUDA_R_32F;
}

// Everything that the choice of an algorithm depends on.
std::string ShapeOf(const GemmCall& call, const Factors& factors, absl::string_view precision) {
  return absl::StrCat(precision, "-", call.rows, "x", call.columns, "x", call.depth, call.a_transposed ? "-at" : "-a",
                      AlignmentOf(factors.a), call.b_transposed ? "-bt" : "-b", AlignmentOf(factors.b), "-c",
                      AlignmentOf(call.c.data), call.c.type == ElementType::kFp32 ? "" : "-half",
                      call.beta != 0.0f ? "-beta" : "", "-e", EpilogueOf(call));
}

class CublasGemm : public Gemm {
 public:
  CublasGemm(const CublasTables& tables, const CudaOptions& options, const std::string& gpu, cublasLtHandle_t handle,
             HalfCopies* halves, Scratch workspace)
      : lt_(tables.lt),
        load_cublas_(tables.load_cublas),
        autotune_(options.autotune),
        halves_(*halves),
        handle_(handle, lt_.Destroy),
        workspace_(std::move(workspace)),
        cache_(CachePath(lt_, options, gpu)) {}

  std::string Describe() const override {
    const size_t version = lt_.GetVersion();
    return absl::StrCat("cuBLASLt ", version / 10000, ".", version / 100 % 100, ".", version % 100, " ",
                        arithmetic_.name);
  }

  int64_t workspace_bytes() const override { return kWorkspaceBytes; }

  void SetPrecision(Precision precision) override { arithmetic_ = ArithmeticOf(precision); }

  absl::Status Multiply(cudaStream_t stream, const GemmCall& call) override {
    if (arithmetic_.factor == CUDA_R_32F) return MultiplyFactors(stream, call, {call.a.data, call.b.data, call.bias});
    const HalfType type = arithmetic_.factor == CUDA_R_16BF ? HalfType::kBf16 : HalfType::kFp16;
    absl::StatusOr<HalfCopies::Copy> a = halves_.Get(stream, type, call.a, call.rows * call.depth);
    if (!a.ok()) return a.status();
    absl::StatusOr<HalfCopies::Copy> b = halves_.Get(stream, type, call.b, call.depth * call.columns);
    if (!b.ok()) return b.status();
    if (call.bias == nullptr || call.c.type == ElementType::kFp32) {
      return MultiplyFactors(stream, call, {a->data(), b->data(), call.bias});
    }
    absl::StatusOr<HalfCopies::Copy> bias = halves_.Get(stream, type, call.bias, call.columns);
    if (!bias.ok()) return bias.status();
    return MultiplyFactors(stream, call, {a->data(), b->data(), bias->data()});
  }

 private:
  // Prepared descriptors and algorithm for products of one shape.
  struct Plan {
    Owned<cublasLtMatmulDescOpaque_t> product{nullptr, nullptr};
    Owned<cublasLtMatrixLayoutOpaque_t> first{nullptr, nullptr};
    Owned<cublasLtMatrixLayoutOpaque_t> second{nullptr, nullptr};
    Owned<cublasLtMatrixLayoutOpaque_t> result{nullptr, nullptr};
    cublasLtMatmulAlgo_t algorithm = {};
    // True if the product itself includes the requested bias, or ReLU.
    bool fuses_bias = true;
    bool fuses_relu = true;
    // Uses cuBLAS, because cuBLASLt has no algorithm.
    bool without_lt = false;
  };

  absl::Status MultiplyFactors(cudaStream_t stream, const GemmCall& call, const Factors& factors) {
    const std::string shape = ShapeOf(call, factors, arithmetic_.name);
    auto plan = plans_.find(shape);
    if (plan == plans_.end()) {
      absl::StatusOr<Plan> made = MakePlan(stream, call, factors, shape);
      if (!made.ok()) return made.status();
      plan = plans_.emplace(shape, *std::move(made)).first;
    }
    absl::Status status = plan->second.without_lt ? IssueWithoutLt(stream, call, factors)
                                                  : Issue(stream, call, factors, plan->second, plan->second.algorithm);
    if (!status.ok()) return status;
    cudaError_t error = cudaSuccess;
    if (call.bias != nullptr && !plan->second.fuses_bias) {
      error = LaunchAddBias(stream, call.bias, call.rows, call.columns, call.c);
    }
    if (error == cudaSuccess && call.relu && !plan->second.fuses_relu) {
      error = LaunchActivate(stream, Activation::kRelu, call.rows * call.columns, call.c, call.c);
    }
    return CudaStatus(error, "product's bias");
  }

  // One file per GPU and library version, because their algorithms differ.
  static std::string CachePath(const CublasLt& lt, const CudaOptions& options, const std::string& gpu) {
    if (!options.autotune || options.cache_folder.empty()) return "";
    return absl::StrCat(options.cache_folder, "/cublaslt-", lt.GetVersion(), "-",
                        absl::StrReplaceAll(gpu, {{" ", "_"}, {"/", "_"}}), ".txt");
  }

  absl::StatusOr<Plan> MakePlan(cudaStream_t stream, const GemmCall& call, const Factors& factors,
                                const std::string& shape) {
    absl::StatusOr<Plan> plan = FindPlan(stream, call, factors, shape);
    if (!plan.ok() || !call.relu || !plan->fuses_relu) return plan;
    const absl::StatusOr<bool> passes_nan = PassesNan(stream, call, factors, *plan);
    if (!passes_nan.ok()) return passes_nan.status();
    if (*passes_nan) return plan;
    GemmCall without = call;
    without.relu = false;
    plan = FindPlan(stream, without, factors, ShapeOf(without, factors, arithmetic_.name));
    if (plan.ok()) plan->fuses_relu = false;
    return plan;
  }

  // Returns whether the plan's ReLU keeps NaN. cuBLASLt defines it as max(x, 0), which may be 0; then the loss of a
  // layer that has diverged would be finite. Writes c, which must not be read by the product (beta 0).
  absl::StatusOr<bool> PassesNan(cudaStream_t stream, const GemmCall& call, const Factors& factors, const Plan& plan) {
    if (call.beta != 0.0f) return false;
    const absl::StatusOr<PinnedMemory> first = MakePinnedMemory(sizeof(float));
    if (!first.ok()) return first.status();
    GemmCall nan = call;
    nan.alpha = NAN;
    absl::Status status = Issue(stream, nan, factors, plan, plan.algorithm);
    if (!status.ok()) return status;
    // All elements are NaN before the ReLU, so one is enough.
    status =
        CudaStatus(cudaMemcpyAsync(first->get(), call.c.data, BytesOf(call.c.type), cudaMemcpyDeviceToHost, stream),
                   "cudaMemcpyAsync");
    status.Update(CudaStatus(cudaStreamSynchronize(stream), "cudaStreamSynchronize"));
    if (!status.ok()) return status;
    const ConstElements got(first->get(), call.c.type);
    return std::isnan(got.type == ElementType::kFp32   ? *got.As<float>()
                      : got.type == ElementType::kBf16 ? static_cast<float>(*got.As<Bf16>())
                                                       : static_cast<float>(*got.As<Fp16>()));
  }

  absl::StatusOr<Plan> FindPlan(cudaStream_t stream, const GemmCall& call, const Factors& factors,
                                const std::string& shape) {
    absl::StatusOr<Plan> plan = Describe(call, factors, EpilogueOf(call));
    if (!plan.ok()) return plan;
    if (autotune_ && Recall(shape, &*plan)) return plan;
    absl::StatusOr<std::vector<cublasLtMatmulHeuristicResult_t>> candidates = Suggest(call, factors, *plan);
    if (candidates.ok() && candidates->empty() && EpilogueOf(call) != CUBLASLT_EPILOGUE_DEFAULT) {
      plan = Describe(call, factors, CUBLASLT_EPILOGUE_DEFAULT);
      if (!plan.ok()) return plan;
      plan->fuses_bias = plan->fuses_relu = false;
      candidates = Suggest(call, factors, *plan);
    }
    if (!candidates.ok()) return candidates.status();
    if (candidates->empty()) {
      plan->without_lt = true;
      plan->fuses_bias = plan->fuses_relu = false;
      return plan;
    }
    plan->algorithm = candidates->front().algo;
    // With beta the product reads c, which measuring would change.
    if (!autotune_ || call.beta != 0.0f || candidates->size() == 1) return plan;
    absl::StatusOr<int> fastest = Measure(stream, call, factors, *plan, *candidates);
    if (!fastest.ok()) return fastest.status();
    plan->algorithm = (*candidates)[*fastest].algo;
    if (plan->fuses_bias) {
      cache_.Add(shape, absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(&plan->algorithm),
                                                                 sizeof(plan->algorithm))));
    }
    return plan;
  }

  // Sets the algorithm to the one measured before; returns false if there is none, or if it does not work here.
  bool Recall(const std::string& shape, Plan* plan) {
    const std::optional<std::string> hex = cache_.Find(shape);
    if (!hex.has_value() || hex->size() != 2 * sizeof(plan->algorithm) ||
        hex->find_first_not_of("0123456789abcdef") != std::string::npos) {
      return false;
    }
    std::memcpy(&plan->algorithm, absl::HexStringToBytes(*hex).data(), sizeof(plan->algorithm));
    cublasLtMatmulHeuristicResult_t result = {};
    return lt_.MatmulAlgoCheck(handle_.get(), plan->product.get(), plan->first.get(), plan->second.get(),
                               plan->result.get(), plan->result.get(), &plan->algorithm,
                               &result) == CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= kWorkspaceBytes;
  }

  absl::StatusOr<Plan> Describe(const GemmCall& call, const Factors& factors, cublasLtEpilogue_t epilogue) {
    const ColumnMajorCall q(call);
    Plan plan;
    cublasLtMatmulDesc_t product = nullptr;
    absl::Status status =
        lt_.ToStatus(lt_.MatmulDescCreate(&product, arithmetic_.compute, CUDA_R_32F), "cublasLtMatmulDescCreate");
    if (!status.ok()) return status;
    plan.product = {product, lt_.MatmulDescDestroy};
    status.Update(Set(product, CUBLASLT_MATMUL_DESC_TRANSA, q.first_operation));
    status.Update(Set(product, CUBLASLT_MATMUL_DESC_TRANSB, q.second_operation));
    status.Update(Set(product, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue));
    if (epilogue != CUBLASLT_EPILOGUE_DEFAULT && call.bias != nullptr) {
      status.Update(Set(product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, factors.bias));
    }
    if (!status.ok()) return status;
    for (const auto& [layout, rows, columns] : {std::tuple(&plan.first, q.first_rows, q.first_columns),
                                                std::tuple(&plan.second, q.second_rows, q.second_columns),
                                                std::tuple(&plan.result, q.result_rows, q.result_columns)}) {
      const cudaDataType_t type = layout == &plan.result ? TypeOf(call.c.type) : arithmetic_.factor;
      cublasLtMatrixLayout_t made = nullptr;
      status = lt_.ToStatus(lt_.MatrixLayoutCreate(&made, type, rows, columns, static_cast<int64_t>(rows)),
                            "cublasLtMatrixLayoutCreate");
      if (!status.ok()) return status;
      *layout = {made, lt_.MatrixLayoutDestroy};
    }
    return plan;
  }

  template <typename Value>
  absl::Status Set(cublasLtMatmulDesc_t product, cublasLtMatmulDescAttributes_t attribute, const Value& value) {
    return lt_.ToStatus(lt_.MatmulDescSetAttribute(product, attribute, &value, sizeof(value)),
                        "cublasLtMatmulDescSetAttribute");
  }

  // The library's suggestions, by expected speed; none if it cannot compute the product.
  absl::StatusOr<std::vector<cublasLtMatmulHeuristicResult_t>> Suggest(const GemmCall& call, const Factors& factors,
                                                                       const Plan& plan) {
    cublasLtMatmulPreference_t made = nullptr;
    absl::Status status = lt_.ToStatus(lt_.MatmulPreferenceCreate(&made), "cublasLtMatmulPreferenceCreate");
    if (!status.ok()) return status;
    const Owned<cublasLtMatmulPreferenceOpaque_t> preference(made, lt_.MatmulPreferenceDestroy);
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      status.Update(lt_.ToStatus(lt_.MatmulPreferenceSetAttribute(made, attribute, &value, sizeof(value)),
                                 "cublasLtMatmulPreferenceSetAttribute"));
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, AlignmentOf(factors.b));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, AlignmentOf(factors.a));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, AlignmentOf(call.c.data));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, AlignmentOf(call.c.data));
    if (!status.ok()) return status;
    std::vector<cublasLtMatmulHeuristicResult_t> results(kCandidates);
    int count = 0;
    const cublasStatus_t answer = lt_.MatmulAlgoGetHeuristic(handle_.get(), plan.product.get(), plan.first.get(),
                                                             plan.second.get(), plan.result.get(), plan.result.get(),
                                                             preference.get(), kCandidates, results.data(), &count);
    if (answer == CUBLAS_STATUS_NOT_SUPPORTED)
      count = 0;
    else if (status = lt_.ToStatus(answer, "cublasLtMatmulAlgoGetHeuristic"); !status.ok())
      return status;
    results.resize(count);
    results.erase(std::remove_if(results.begin(), results.end(),
                                 [](const auto& result) { return result.state != CUBLAS_STATUS_SUCCESS; }),
                  results.end());
    return results;
  }

  // Computes the product with each candidate, so that c is correct on return.
  absl::StatusOr<int> Measure(cudaStream_t stream, const GemmCall& call, const Factors& factors, const Plan& plan,
                              const std::vector<cublasLtMatmulHeuristicResult_t>& candidates) {
    return FindFastest(static_cast<int>(candidates.size()), [&](int candidate) {
      return TimeInStream(stream, [&] { return Issue(stream, call, factors, plan, candidates[candidate].algo); });
    });
  }

  absl::Status Issue(cudaStream_t stream, const GemmCall& call, const Factors& factors, const Plan& plan,
                     const cublasLtMatmulAlgo_t& algorithm) {
    // Another call of the same shape may have another bias.
    if (plan.fuses_bias && call.bias != nullptr) {
      absl::Status status = Set(plan.product.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, factors.bias);
      if (!status.ok()) return status;
    }
    return lt_.ToStatus(
        lt_.Matmul(handle_.get(), plan.product.get(), &call.alpha, factors.b, plan.first.get(), factors.a,
                   plan.second.get(), &call.beta, call.c.data, plan.result.get(), call.c.data, plan.result.get(),
                   &algorithm, workspace_.bytes(), kWorkspaceBytes, stream),
        "cublasLtMatmul");
  }

  absl::Status OpenCublas() {
    absl::StatusOr<const Cublas*> cublas = load_cublas_();
    if (!cublas.ok()) return cublas.status();
    cublasHandle_t handle = nullptr;
    absl::Status status = lt_.ToStatus((*cublas)->Create(&handle), "cublasCreate");
    if (!status.ok()) return status;
    cublas_ = *cublas;
    older_handle_ = {handle, (*cublas)->Destroy};
    return absl::OkStatus();
  }

  absl::Status IssueWithoutLt(cudaStream_t stream, const GemmCall& call, const Factors& factors) {
    if (cublas_ == nullptr) {
      if (absl::Status status = OpenCublas(); !status.ok()) return status;
    }
    for (const int64_t size : {call.rows, call.columns, call.depth}) {
      if (size > std::numeric_limits<int>::max()) {
        return absl::UnimplementedError(absl::StrCat("cuda device: product: got a factor with ", size,
                                                     " rows or columns, want at most 2147483647"));
      }
    }
    const ColumnMajorCall q(call);
    // Setting the stream resets the workspace.
    absl::Status status = lt_.ToStatus(cublas_->SetStream(older_handle_.get(), stream), "cublasSetStream");
    status.Update(lt_.ToStatus(cublas_->SetWorkspace(older_handle_.get(), workspace_.bytes(), kWorkspaceBytes),
                               "cublasSetWorkspace"));
    if (!status.ok()) return status;
    return lt_.ToStatus(
        cublas_->GemmEx(older_handle_.get(), q.first_operation, q.second_operation, static_cast<int>(q.result_rows),
                        static_cast<int>(q.result_columns), static_cast<int>(call.depth), &call.alpha, factors.b,
                        arithmetic_.factor, static_cast<int>(q.first_rows), factors.a, arithmetic_.factor,
                        static_cast<int>(q.second_rows), &call.beta, call.c.data, TypeOf(call.c.type),
                        static_cast<int>(q.result_rows), arithmetic_.compute, CUBLAS_GEMM_DEFAULT),
        "cublasGemmEx");
  }

  const CublasLt& lt_;
  absl::StatusOr<const Cublas*> (*const load_cublas_)();
  const bool autotune_;
  Arithmetic arithmetic_ = ArithmeticOf(Precision::kFp32);
  HalfCopies& halves_;
  const Owned<cublasLtContext> handle_;
  // Shared by all products, because only one runs at a time.
  const Scratch workspace_;
  // Null until a product needs it.
  const Cublas* cublas_ = nullptr;
  Owned<cublasContext> older_handle_{nullptr, nullptr};
  AlgorithmCache cache_;
  std::unordered_map<std::string, Plan> plans_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Gemm>> MakeCublasGemm(const CublasTables& tables, const CudaOptions& options,
                                                     const std::string& gpu, MemoryPool* memory, HalfCopies* halves) {
  absl::StatusOr<Scratch> workspace = Scratch::Make(memory, kWorkspaceBytes);
  if (!workspace.ok()) return workspace.status();
  cublasLtHandle_t handle = nullptr;
  absl::Status status = tables.lt.ToStatus(tables.lt.Create(&handle), "cublasLtCreate");
  if (!status.ok()) return status;
  return std::make_unique<CublasGemm>(tables, options, gpu, handle, halves, *std::move(workspace));
}

}  // namespace ballast
