// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cublasLt.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ballast {

// The functions of cuBLASLt that we call, of the library that the loader found: the names and types are cuBLASLt's. Not
// linked, so that a worker starts, and computes on the CPU, where there is none: see docs/decisions/0012.
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

  // A call's result, named by the call. RESOURCE_EXHAUSTED: no memory; INTERNAL: anything else.
  absl::Status ToStatus(cublasStatus_t status, absl::string_view call) const;
};

// Loaded with the first call, and never unloaded. FAILED_PRECONDITION names what is missing, and where it was looked
// for.
absl::StatusOr<const CublasLt*> LoadCublasLt();

}  // namespace ballast
