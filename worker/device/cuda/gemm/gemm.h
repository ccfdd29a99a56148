// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/device/cuda/kernels/elements.h"
#include "worker/device/cuda/memory/half_copies.h"
#include "worker/device/cuda/memory/memory_pool.h"
#include "worker/device/cuda_options.h"
#include "worker/device/device_types.h"

namespace ballast {

// c = alpha * a b + beta * c, then optionally a bias and a ReLU. Row-major; c is [rows, columns] and the
// sums have depth > 0 terms. A factor's memory may hold its transpose. c overlaps nothing. Factors and result have
// elements of any type that fits the precision; the bias holds floats.
struct GemmCall {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t depth = 0;
  ConstElements a;
  bool a_transposed = false;
  ConstElements b;
  bool b_transposed = false;
  float alpha = 1.0f;
  float beta = 0.0f;
  Elements c;
  // bias[j] is added to column j; null for none.
  const float* bias = nullptr;
  bool relu = false;
};

// Multiplies matrices on a GPU. Thread safety: one call at a time, all with one stream.
class Gemm {
 public:
  virtual ~Gemm() = default;

  // The library and the precision.
  virtual std::string Describe() const = 0;
  // GPU memory held for all products, in bytes.
  virtual int64_t workspace_bytes() const = 0;
  // From now on rounds factors to this precision before multiplying; sums stay float. FP32 at first.
  virtual void SetPrecision(Precision precision) = 0;
  virtual absl::Status Multiply(cudaStream_t stream, const GemmCall& call) = 0;
};

// FAILED_PRECONDITION if products cannot be computed here; names the missing library and where it was searched for.
// Needs no GPU.
absl::Status CheckGemmLibrary();

// `memory` and `halves` outlive it. `gpu` names the GPU in the results stored between runs.
absl::StatusOr<std::unique_ptr<Gemm>> MakeGemm(const CudaOptions& options, const std::string& gpu, MemoryPool* memory,
                                               HalfCopies* halves);

}  // namespace ballast
