// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/gemm/cublas_gemm.h"
#include "worker/device/cuda/gemm/gemm.h"
#include "worker/device/cuda/library/cublas_library.h"

namespace ballast {

absl::Status CheckGemmLibrary() { return LoadCublasLt().status(); }

absl::StatusOr<std::unique_ptr<Gemm>> MakeGemm(const CudaOptions& options, const std::string& gpu, MemoryPool* memory,
                                               HalfCopies* halves) {
  absl::StatusOr<const CublasLt*> lt = LoadCublasLt();
  if (!lt.ok()) return lt.status();
  return MakeCublasGemm({**lt, LoadCublas}, options, gpu, memory, halves);
}

}  // namespace ballast
