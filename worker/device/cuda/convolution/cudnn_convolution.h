// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker/device/cuda/convolution/convolution.h"
#include "worker/device/cuda/library/cudnn_library.h"

namespace ballast {

// Uses cuDNN, with algorithms that give the same bits in every run, and `otherwise` for convolutions without such an
// algorithm. `cudnn` outlives it.
absl::StatusOr<std::unique_ptr<CudaConvolution>> MakeCudnnConvolution(const Cudnn& cudnn, const ConvolutionParts& parts,
                                                                      std::unique_ptr<CudaConvolution> otherwise);

// Uses cuDNN if it was loaded and starts, otherwise matrix products, with a warning.
std::unique_ptr<CudaConvolution> MakeConvolutionWith(const absl::StatusOr<const Cudnn*>& cudnn,
                                                     const ConvolutionParts& parts);

}  // namespace ballast
