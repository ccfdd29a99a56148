// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/convolution/cudnn_convolution.h"

namespace ballast {

std::unique_ptr<CudaConvolution> MakeBestConvolution(const ConvolutionParts& parts) {
  return MakeConvolutionWith(LoadCudnn(), parts);
}

}  // namespace ballast
