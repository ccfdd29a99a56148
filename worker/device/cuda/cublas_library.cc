// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/cublas_library.h"

#include <ballast_cuda_build.h>
#include <dlfcn.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace ballast {
namespace {

// With the major version: another one's functions may take other arguments.
std::string FileName() { return absl::StrCat("libcublasLt.so.", BALLAST_CUBLAS_MAJOR); }

// Sets `function` to the library's; the name of one that it lacks is kept in `missing`.
template <typename Function>
void Find(void* library, const char* name, Function* function, std::string* missing) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  if (*function == nullptr) *missing = name;
}

absl::StatusOr<CublasLt> Load() {
  // First where the loader looks (LD_LIBRARY_PATH, ldconfig), then where this was built.
  void* library = dlopen(FileName().c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    library = dlopen(absl::StrCat(BALLAST_CUDA_LIBRARIES, "/", FileName()).c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  if (library == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("no cuBLAS: ", FileName(), " is neither where the loader looks nor in ", BALLAST_CUDA_LIBRARIES,
                     "; install cuBLAS ", BALLAST_CUBLAS_MAJOR, ", or name its folder in LD_LIBRARY_PATH"));
  }
  CublasLt lt;
  std::string missing;
  Find(library, "cublasLtCreate", &lt.Create, &missing);
  Find(library, "cublasLtDestroy", &lt.Destroy, &missing);
  Find(library, "cublasLtGetVersion", &lt.GetVersion, &missing);
  Find(library, "cublasLtGetStatusString", &lt.GetStatusString, &missing);
  Find(library, "cublasLtMatmul", &lt.Matmul, &missing);
  Find(library, "cublasLtMatmulAlgoCheck", &lt.MatmulAlgoCheck, &missing);
  Find(library, "cublasLtMatmulAlgoGetHeuristic", &lt.MatmulAlgoGetHeuristic, &missing);
  Find(library, "cublasLtMatmulDescCreate", &lt.MatmulDescCreate, &missing);
  Find(library, "cublasLtMatmulDescDestroy", &lt.MatmulDescDestroy, &missing);
  Find(library, "cublasLtMatmulDescSetAttribute", &lt.MatmulDescSetAttribute, &missing);
  Find(library, "cublasLtMatmulPreferenceCreate", &lt.MatmulPreferenceCreate, &missing);
  Find(library, "cublasLtMatmulPreferenceDestroy", &lt.MatmulPreferenceDestroy, &missing);
  Find(library, "cublasLtMatmulPreferenceSetAttribute", &lt.MatmulPreferenceSetAttribute, &missing);
  Find(library, "cublasLtMatrixLayoutCreate", &lt.MatrixLayoutCreate, &missing);
  Find(library, "cublasLtMatrixLayoutDestroy", &lt.MatrixLayoutDestroy, &missing);
  if (missing.empty()) return lt;
  return absl::FailedPreconditionError(
      absl::StrCat("cuBLAS: ", FileName(), " has no ", missing, "; install a newer cuBLAS ", BALLAST_CUBLAS_MAJOR));
}

}  // namespace

absl::Status CublasLt::ToStatus(cublasStatus_t status, absl::string_view call) const {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  const std::string message =
      absl::StrCat("cuda device: ", call, ": error ", static_cast<int>(status), ", ", GetStatusString(status));
  if (status == CUBLAS_STATUS_ALLOC_FAILED) return absl::ResourceExhaustedError(message);
  return absl::InternalError(message);
}

absl::StatusOr<const CublasLt*> LoadCublasLt() {
  static const auto* const lt = new absl::StatusOr<CublasLt>(Load());
  if (!lt->ok()) return lt->status();
  return &**lt;
}

}  // namespace ballast
