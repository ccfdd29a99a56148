// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "worker/device/cuda/gemm/gemm.h"
#include "worker/device/cuda/memory/half_copies.h"
#include "worker/device/cuda/memory/memory_pool.h"
#include "worker/device/cuda_options.h"
#include "worker/device/device_types.h"
#include "worker/device/image_shape.h"

namespace ballast {

// The three convolutions of ImageOperations on a GPU's memory, with the same contracts. Thread safety: one call at a
// time, all with one stream.
class CudaConvolution {
 public:
  virtual ~CudaConvolution() = default;

  virtual std::string Describe() const = 0;
  // Takes the workspace for convolutions of these shapes with up to `examples` examples; see Device::ReserveWorkspace.
  virtual absl::Status Reserve(absl::Span<const ConvShape> shapes, int64_t examples) = 0;
  // GPU memory held for all convolutions, in bytes.
  virtual int64_t workspace_bytes() const = 0;
  // From now on rounds operands to this precision, and may round results to it; sums stay float. FP32 at first.
  // Images have elements of any one type that fits the precision.
  virtual void SetPrecision(Precision precision) = 0;
  // `bias` may be null.
  virtual absl::Status Forward(cudaStream_t stream, const ConvShape& shape, int64_t examples, ConstElements x,
                               const float* filters, const float* bias, Elements y) = 0;
  virtual absl::Status BackwardData(cudaStream_t stream, const ConvShape& shape, int64_t examples, ConstElements dy,
                                    const float* filters, Elements dx) = 0;
  virtual absl::Status BackwardFilters(cudaStream_t stream, const ConvShape& shape, int64_t examples, ConstElements x,
                                       ConstElements dy, float* dfilters) = 0;
};

// Arguments of a convolution's factory. The first three outlive the convolution; options and name are only read.
struct ConvolutionParts {
  Gemm* gemm;
  MemoryPool* memory;
  HalfCopies* halves;
  const CudaOptions& options;
  // Names the GPU in the results stored between runs.
  const std::string& gpu;
};

// Computes convolutions as matrix products over the windows; needs no library besides Gemm, and uses its precision.
// `gemm` and `memory` outlive it.
std::unique_ptr<CudaConvolution> MakeIm2colConvolution(Gemm* gemm, MemoryPool* memory);

// Computes convolutions of images with few channels with kernels of our own (IsNarrow), and leaves the others to
// `otherwise`. `memory` outlives it.
std::unique_ptr<CudaConvolution> MakeNarrowConvolution(MemoryPool* memory, std::unique_ptr<CudaConvolution> otherwise);

// Uses cuDNN if the build and this machine have it, otherwise matrix products, with a warning.
std::unique_ptr<CudaConvolution> MakeBestConvolution(const ConvolutionParts& parts);

// Warns, once in a process, that convolutions are matrix products and what that costs. `why` is a sentence without its
// full stop.
void WarnOfProducts(absl::string_view why);

}  // namespace ballast
