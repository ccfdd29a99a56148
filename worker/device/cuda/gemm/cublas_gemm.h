// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/device/cuda/gemm/gemm.h"
#include "worker/device/cuda/library/cublas_library.h"

namespace ballast {

struct CublasTables {
  const CublasLt& lt;
  // Called at the first product that cuBLASLt has no algorithm for.
  absl::StatusOr<const Cublas*> (*load_cublas)();
};

// Multiplies with cuBLASLt, and with cuBLAS if cuBLASLt has no algorithm. The tables, `memory` and `halves` outlive
// it.
absl::StatusOr<std::unique_ptr<Gemm>> MakeCublasGemm(const CublasTables& tables, const CudaOptions& options,
                                                     const std::string& gpu, MemoryPool* memory, HalfCopies* halves);

}  // namespace ballast
