// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/convolution/convolution.h"

namespace ballast {

std::unique_ptr<CudaConvolution> MakeBestConvolution(const ConvolutionParts& parts) {
  WarnOfProducts("this worker was built with a CUDA toolkit without cuDNN 9");
  return MakeIm2colConvolution(parts.gemm, parts.memory);
}

}  // namespace ballast
