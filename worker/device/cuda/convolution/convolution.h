// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/device/cuda/gemm/gemm.h"
#include "worker/device/cuda/memory/half_copies.h"
#include "worker/device/cuda/memory/memory_pool.h"
#include "worker/device/cuda_options.h"
#include "worker/device/device_types.h"
#include "worker/device/image_shape.h"

namespace ballast {

// Convolutions on a GPU: ImageOperations' three on device memory, whose contracts hold here. Thread safety: one call at
// a time, all with one stream.
class CudaConvolution {
 public:
  virtual ~CudaConvolution() = default;

  // The library.
  virtual std::string Describe() const = 0;
  // From now on rounds what it multiplies to this, and may round what comes out to it; sums stay float. Fp32 at first.
  // Images have elements of any one type that fits it.
  virtual void SetPrecision(Precision precision) = 0;
  // `bias` may be null.
  virtual absl::Status Forward(cudaStream_t stream, const ConvShape& shape, int64_t examples, ConstElements x,
                               const float* filters, const float* bias, Elements y) = 0;
  virtual absl::Status BackwardData(cudaStream_t stream, const ConvShape& shape, int64_t examples, ConstElements dy,
                                    const float* filters, Elements dx) = 0;
  virtual absl::Status BackwardFilters(cudaStream_t stream, const ConvShape& shape, int64_t examples, ConstElements x,
                                       ConstElements dy, float* dfilters) = 0;
};

// What convolutions stand on. The first three outlive them; options and name are read when they are made.
struct ConvolutionParts {
  Gemm* gemm;
  MemoryPool* memory;
  HalfCopies* halves;
  const CudaOptions& options;
  // Names the GPU in what is kept between runs.
  const std::string& gpu;
};

// By products over the windows, which takes no library but Gemm's, and has its precision. Both outlive it.
std::unique_ptr<CudaConvolution> MakeIm2colConvolution(Gemm* gemm, MemoryPool* memory);

// By cuDNN where the build and this machine have it, else by products.
std::unique_ptr<CudaConvolution> MakeBestConvolution(const ConvolutionParts& parts);

}  // namespace ballast
