// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "worker/device/cuda/convolution/cudnn_convolution.h"

namespace ballast {

std::unique_ptr<CudaConvolution> MakeBestConvolution(const ConvolutionParts& parts) {
  std::unique_ptr<CudaConvolution> products = MakeIm2colConvolution(parts.gemm, parts.memory);
  const absl::StatusOr<const Cudnn*> cudnn = LoadCudnn();
  if (!cudnn.ok()) return products;
  absl::StatusOr<std::unique_ptr<CudaConvolution>> best = MakeCudnnConvolution(**cudnn, parts, std::move(products));
  // A cuDNN that does not start counts as missing.
  return best.ok() ? *std::move(best) : MakeIm2colConvolution(parts.gemm, parts.memory);
}

}  // namespace ballast
