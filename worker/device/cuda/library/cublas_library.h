// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cublasLt.h>
#include <cublas_v2.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ballast {

// The functions of cuBLASLt that we call, with its names and types. They are looked up by name, not linked, so that
// one source serves a worker with cuBLAS and a worker that starts without it and computes on the CPU: see
// docs/decisions/0012.
struct CublasLt {
  decltype(&cublasLtCreate) Create;
  decltype(&cublasLtDestroy) Destroy;
  decltype(&cublasLtGetVersion) GetVersion;
  decltype(&cublasLtGetStatusString) GetStatusString;
  decltype(&cublasLtMatmul) Matmul;
  decltype(&cublasLtMatmulAlgoCheck) MatmulAlgoCheck;
  decltype(&cublasLtMatmulAlgoGetHeuristic) MatmulAlgoGetHeuristic;
  decltype(&cublasLtMatmulDescCreate) MatmulDescCreate;
  decltype(&cublasLtMatmulDescDestroy) MatmulDescDestroy;
  decltype(&cublasLtMatmulDescSetAttribute) MatmulDescSetAttribute;
  decltype(&cublasLtMatmulPreferenceCreate) MatmulPreferenceCreate;
  decltype(&cublasLtMatmulPreferenceDestroy) MatmulPreferenceDestroy;
  decltype(&cublasLtMatmulPreferenceSetAttribute) MatmulPreferenceSetAttribute;
  decltype(&cublasLtMatrixLayoutCreate) MatrixLayoutCreate;
  decltype(&cublasLtMatrixLayoutDestroy) MatrixLayoutDestroy;

  // Converts the result of `call` to a status: RESOURCE_EXHAUSTED if memory is short, INTERNAL for other errors.
  absl::Status ToStatus(cublasStatus_t status, absl::string_view call) const;
};

// The functions of cuBLAS, for products that cuBLASLt has no algorithm for.
struct Cublas {
  decltype(&cublasCreate_v2) Create;
  decltype(&cublasDestroy_v2) Destroy;
  decltype(&cublasSetStream_v2) SetStream;
  decltype(&cublasSetWorkspace_v2) SetWorkspace;
  cublasStatus_t (*GemmEx)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int m, int n, int k, const void* alpha,
                           const void* a, cudaDataType, int lda, const void* b, cudaDataType, int ldb, const void* beta,
                           void* c, cudaDataType, int ldc, cublasComputeType_t, cublasGemmAlgo_t);
};

// Loaded by the first call and never unloaded. FAILED_PRECONDITION names what is missing and where it was searched
// for.
absl::StatusOr<const CublasLt*> LoadCublasLt();
absl::StatusOr<const Cublas*> LoadCublas();

}  // namespace ballast
