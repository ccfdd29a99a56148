// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/convolution/convolution.h"

namespace ballast {

std::unique_ptr<CudaConvolution> MakeBestConvolution(const ConvolutionParts& parts) {
  return MakeIm2colConvolution(parts.gemm, parts.memory);
}

}  // namespace ballast
