// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/device/cuda/gemm.h"
#include "worker/device/cuda/memory_pool.h"
#include "worker/device/cuda_options.h"
#include "worker/device/image_shape.h"

namespace ballast {

// Convolutions on a GPU: ImageOperations' three on device memory, whose contracts hold here. Thread safety: one call at
// a time, all with one stream.
class CudaConvolution {
 public:
  virtual ~CudaConvolution() = default;

  // The library.
  virtual std::string Describe() const = 0;
  // `bias` may be null.
  virtual absl::Status Forward(cudaStream_t stream, const ConvShape& shape, int64_t examples, const float* x,
                               const float* filters, const float* bias, float* y) = 0;
  virtual absl::Status BackwardData(cudaStream_t stream, const ConvShape& shape, int64_t examples, const float* dy,
                                    const float* filters, float* dx) = 0;
  virtual absl::Status BackwardFilters(cudaStream_t stream, const ConvShape& shape, int64_t examples, const float* x,
                                       const float* dy, float* dfilters) = 0;
};

// By products over the windows, which takes no library but Gemm's. Both outlive it.
std::unique_ptr<CudaConvolution> MakeIm2colConvolution(Gemm* gemm, MemoryPool* memory);

}  // namespace ballast
