// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/library/cudnn_library.h"

#include "absl/strings/str_cat.h"
#include "worker/device/cuda/library/nvidia_library.h"

namespace ballast {
namespace {

absl::StatusOr<Cudnn> Load() {
  absl::StatusOr<NvidiaLibrary> library =
      NvidiaLibrary::Open("cuDNN", CUDNN_MAJOR, absl::StrCat("libcudnn.so.", CUDNN_MAJOR));
  if (!library.ok()) return library.status();
  Cudnn cudnn;
  library->Find("cudnnCreate", &cudnn.Create);
  library->Find("cudnnDestroy", &cudnn.Destroy);
  library->Find("cudnnSetStream", &cudnn.SetStream);
  library->Find("cudnnGetVersion", &cudnn.GetVersion);
  library->Find("cudnnGetErrorString", &cudnn.GetErrorString);
  library->Find("cudnnCreateTensorDescriptor", &cudnn.CreateTensorDescriptor);
  library->Find("cudnnDestroyTensorDescriptor", &cudnn.DestroyTensorDescriptor);
  library->Find("cudnnSetTensor4dDescriptor", &cudnn.SetTensor4dDescriptor);
  library->Find("cudnnCreateFilterDescriptor", &cudnn.CreateFilterDescriptor);
  library->Find("cudnnDestroyFilterDescriptor", &cudnn.DestroyFilterDescriptor);
  library->Find("cudnnSetFilter4dDescriptor", &cudnn.SetFilter4dDescriptor);
  library->Find("cudnnCreateConvolutionDescriptor", &cudnn.CreateConvolutionDescriptor);
  library->Find("cudnnDestroyConvolutionDescriptor", &cudnn.DestroyConvolutionDescriptor);
  library->Find("cudnnSetConvolution2dDescriptor", &cudnn.SetConvolution2dDescriptor);
  library->Find("cudnnSetConvolutionMathType", &cudnn.SetConvolutionMathType);
  library->Find("cudnnGetConvolutionForwardAlgorithm_v7", &cudnn.GetConvolutionForwardAlgorithm);
  library->Find("cudnnGetConvolutionBackwardDataAlgorithm_v7", &cudnn.GetConvolutionBackwardDataAlgorithm);
  library->Find("cudnnGetConvolutionBackwardFilterAlgorithm_v7", &cudnn.GetConvolutionBackwardFilterAlgorithm);
  library->Find("cudnnGetConvolutionForwardWorkspaceSize", &cudnn.GetConvolutionForwardWorkspaceSize);
  library->Find("cudnnGetConvolutionBackwardDataWorkspaceSize", &cudnn.GetConvolutionBackwardDataWorkspaceSize);
  library->Find("cudnnGetConvolutionBackwardFilterWorkspaceSize", &cudnn.GetConvolutionBackwardFilterWorkspaceSize);
  library->Find("cudnnConvolutionForward", &cudnn.ConvolutionForward);
  library->Find("cudnnConvolutionBackwardData", &cudnn.ConvolutionBackwardData);
  library->Find("cudnnConvolutionBackwardFilter", &cudnn.ConvolutionBackwardFilter);
  if (!library->status().ok()) return library->status();
  return cudnn;
}

}  // namespace

absl::StatusOr<const Cudnn*> LoadCudnn() {
  static const auto* const cudnn = new absl::StatusOr<Cudnn>(Load());
  if (!cudnn->ok()) return cudnn->status();
  return &**cudnn;
}

}  // namespace ballast
