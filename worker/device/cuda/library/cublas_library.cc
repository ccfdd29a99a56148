// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/library/cublas_library.h"

#include <ballast_cuda_build.h>

#include "absl/strings/str_cat.h"
#include "worker/device/cuda/library/nvidia_library.h"

namespace ballast {
namespace {

absl::StatusOr<CublasLt> Load() {
  absl::StatusOr<NvidiaLibrary> library =
      NvidiaLibrary::Open("cuBLAS", BALLAST_CUBLAS_MAJOR, absl::StrCat("libcublasLt.so.", BALLAST_CUBLAS_MAJOR));
  if (!library.ok()) return library.status();
  CublasLt lt;
  library->Find("cublasLtCreate", &lt.Create);
  library->Find("cublasLtDestroy", &lt.Destroy);
  library->Find("cublasLtGetVersion", &lt.GetVersion);
  library->Find("cublasLtGetStatusString", &lt.GetStatusString);
  library->Find("cublasLtMatmul", &lt.Matmul);
  library->Find("cublasLtMatmulAlgoCheck", &lt.MatmulAlgoCheck);
  library->Find("cublasLtMatmulAlgoGetHeuristic", &lt.MatmulAlgoGetHeuristic);
  library->Find("cublasLtMatmulDescCreate", &lt.MatmulDescCreate);
  library->Find("cublasLtMatmulDescDestroy", &lt.MatmulDescDestroy);
  library->Find("cublasLtMatmulDescSetAttribute", &lt.MatmulDescSetAttribute);
  library->Find("cublasLtMatmulPreferenceCreate", &lt.MatmulPreferenceCreate);
  library->Find("cublasLtMatmulPreferenceDestroy", &lt.MatmulPreferenceDestroy);
  library->Find("cublasLtMatmulPreferenceSetAttribute", &lt.MatmulPreferenceSetAttribute);
  library->Find("cublasLtMatrixLayoutCreate", &lt.MatrixLayoutCreate);
  library->Find("cublasLtMatrixLayoutDestroy", &lt.MatrixLayoutDestroy);
  if (!library->status().ok()) return library->status();
  return lt;
}

absl::StatusOr<Cublas> LoadOlder() {
  absl::StatusOr<NvidiaLibrary> library =
      NvidiaLibrary::Open("cuBLAS", BALLAST_CUBLAS_MAJOR, absl::StrCat("libcublas.so.", BALLAST_CUBLAS_MAJOR));
  if (!library.ok()) return library.status();
  Cublas cublas;
  library->Find("cublasCreate_v2", &cublas.Create);
  library->Find("cublasDestroy_v2", &cublas.Destroy);
  library->Find("cublasSetStream_v2", &cublas.SetStream);
  library->Find("cublasSetWorkspace_v2", &cublas.SetWorkspace);
  library->Find("cublasGemmEx", &cublas.GemmEx);
  if (!library->status().ok()) return library->status();
  return cublas;
}

}  // namespace

absl::StatusOr<const CublasLt*> LoadCublasLt() {
  static const auto* const lt = new absl::StatusOr<CublasLt>(Load());
  if (!lt->ok()) return lt->status();
  return &**lt;
}

absl::StatusOr<const Cublas*> LoadCublas() {
  static const auto* const cublas = new absl::StatusOr<Cublas>(LoadOlder());
  if (!cublas->ok()) return cublas->status();
  return &**cublas;
}

}  // namespace ballast
