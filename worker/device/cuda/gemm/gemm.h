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

// c = alpha * a b + beta * c, then plus bias and without what is negative where that is asked. Row-major, c is
// [rows, columns], the sums have depth > 0 terms; a factor's memory may hold its transpose. c overlaps nothing. Factors
// and result have elements of any type that fits the precision, the bias floats.
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
  // bias[j] is added to column j; null: none.
  const float* bias = nullptr;
  bool relu = false;
};

// Multiplies matrices on a GPU. Thread safety: one call at a time, all with one stream.
class Gemm {
 public:
  virtual ~Gemm() = default;

  // The library and how it computes.
  virtual std::string Describe() const = 0;
  // Of the GPU's memory, held for all products.
  virtual int64_t workspace_bytes() const = 0;
  // From now on rounds factors to this before they are multiplied; sums stay float. Fp32 at first.
  virtual void SetPrecision(Precision precision) = 0;
  // Puts the product into the stream.
  virtual absl::Status Multiply(cudaStream_t stream, const GemmCall& call) = 0;
};

// Why products cannot be computed here: FAILED_PRECONDITION names the library that is missing, and where it was looked
// for. Needs no GPU.
absl::Status CheckGemmLibrary();

// `memory` and `halves` outlive it. `gpu` names the GPU in what is kept between runs.
absl::StatusOr<std::unique_ptr<Gemm>> MakeGemm(const CudaOptions& options, const std::string& gpu, MemoryPool* memory,
                                               HalfCopies* halves);

}  // namespace ballast
