// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cudnn_cnn.h>

#include "absl/status/statusor.h"

namespace ballast {

// The functions of cuDNN that we call, with its names and types. They are looked up by name, like cuBLAS's.
struct Cudnn {
  decltype(&cudnnCreate) Create;
  decltype(&cudnnDestroy) Destroy;
  decltype(&cudnnSetStream) SetStream;
  decltype(&cudnnGetVersion) GetVersion;
  decltype(&cudnnGetErrorString) GetErrorString;
  decltype(&cudnnCreateTensorDescriptor) CreateTensorDescriptor;
  decltype(&cudnnDestroyTensorDescriptor) DestroyTensorDescriptor;
  decltype(&cudnnSetTensor4dDescriptor) SetTensor4dDescriptor;
  decltype(&cudnnCreateFilterDescriptor) CreateFilterDescriptor;
  decltype(&cudnnDestroyFilterDescriptor) DestroyFilterDescriptor;
  decltype(&cudnnSetFilter4dDescriptor) SetFilter4dDescriptor;
  decltype(&cudnnCreateConvolutionDescriptor) CreateConvolutionDescriptor;
  decltype(&cudnnDestroyConvolutionDescriptor) DestroyConvolutionDescriptor;
  decltype(&cudnnSetConvolution2dDescriptor) SetConvolution2dDescriptor;
  decltype(&cudnnSetConvolutionMathType) SetConvolutionMathType;
  decltype(&cudnnGetConvolutionForwardAlgorithm_v7) GetConvolutionForwardAlgorithm;
  decltype(&cudnnGetConvolutionBackwardDataAlgorithm_v7) GetConvolutionBackwardDataAlgorithm;
  decltype(&cudnnGetConvolutionBackwardFilterAlgorithm_v7) GetConvolutionBackwardFilterAlgorithm;
  decltype(&cudnnGetConvolutionForwardWorkspaceSize) GetConvolutionForwardWorkspaceSize;
  decltype(&cudnnGetConvolutionBackwardDataWorkspaceSize) GetConvolutionBackwardDataWorkspaceSize;
  decltype(&cudnnGetConvolutionBackwardFilterWorkspaceSize) GetConvolutionBackwardFilterWorkspaceSize;
  decltype(&cudnnConvolutionForward) ConvolutionForward;
  decltype(&cudnnConvolutionBackwardData) ConvolutionBackwardData;
  decltype(&cudnnConvolutionBackwardFilter) ConvolutionBackwardFilter;
};

// Loaded by the first call and never unloaded. FAILED_PRECONDITION names what is missing.
absl::StatusOr<const Cudnn*> LoadCudnn();

}  // namespace ballast
