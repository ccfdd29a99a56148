// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/library/nccl_library.h"

#include "worker/device/cuda/library/nvidia_library.h"

namespace ballast {
namespace {

absl::StatusOr<Nccl> Load() {
  absl::StatusOr<NvidiaLibrary> library = NvidiaLibrary::Open("NCCL", 2, "libnccl.so.2");
  if (!library.ok()) return library.status();
  Nccl nccl;
  library->Find("ncclGetVersion", &nccl.GetVersion);
  library->Find("ncclGetErrorString", &nccl.GetErrorString);
  library->Find("ncclCommInitAll", &nccl.CommInitAll);
  library->Find("ncclCommGetAsyncError", &nccl.CommGetAsyncError);
  library->Find("ncclCommDestroy", &nccl.CommDestroy);
  library->Find("ncclCommAbort", &nccl.CommAbort);
  library->Find("ncclGroupStart", &nccl.GroupStart);
  library->Find("ncclGroupEnd", &nccl.GroupEnd);
  library->Find("ncclReduce", &nccl.Reduce);
  if (!library->status().ok()) return library->status();
  return nccl;
}

}  // namespace

absl::StatusOr<const Nccl*> LoadNccl() {
  static const auto* const nccl = new absl::StatusOr<Nccl>(Load());
  if (!nccl->ok()) return nccl->status();
  return &**nccl;
}

}  // namespace ballast
