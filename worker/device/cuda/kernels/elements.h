// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "worker/device/cuda/kernels/half_math.h"
#include "worker/device/device_types.h"

// Elements of any type in a GPU's memory. Kernels are templates over the type: they load elements as floats, compute
// in fp32, and round when storing.
namespace ballast {

// A bfloat16 in memory.
struct Bf16 {
  uint16_t bits;

  Bf16() = default;
  __host__ __device__ explicit Bf16(float value) : bits(ToBf16(value)) {}
  __host__ __device__ operator float() const { return FromBf16(bits); }
};

// An IEEE half in memory.
struct Fp16 {
  uint16_t bits;

  Fp16() = default;
  __host__ __device__ explicit Fp16(float value) : bits(ToFp16(value)) {}
  __host__ __device__ operator float() const { return FromFp16(bits); }
};

// Input elements of a launcher. Does not own them.
struct ConstElements {
  const void* data = nullptr;
  ElementType type = ElementType::kFp32;

  ConstElements() = default;
  ConstElements(const float* floats) : data(floats) {}
  ConstElements(const void* elements, ElementType of) : data(elements), type(of) {}

  // The elements from index `element` on.
  ConstElements From(int64_t element) const { return {static_cast<const char*>(data) + element * BytesOf(type), type}; }
  template <typename T>
  __host__ __device__ const T* As() const {
    return static_cast<const T*>(data);
  }
};

// Output elements of a launcher. Does not own them.
struct Elements {
  void* data = nullptr;
  ElementType type = ElementType::kFp32;

  Elements() = default;
  Elements(float* floats) : data(floats) {}
  Elements(void* elements, ElementType of) : data(elements), type(of) {}
  operator ConstElements() const { return {data, type}; }

  Elements From(int64_t element) const { return {static_cast<char*>(data) + element * BytesOf(type), type}; }
  template <typename T>
  __host__ __device__ T* As() const {
    return static_cast<T*>(data);
  }
};

// Calls launch(T()), where T is the C++ type of the elements, and returns its result.
template <typename Launch>
cudaError_t WithType(ElementType type, Launch launch) {
  switch (type) {
    case ElementType::kFp32:
      return launch(float());
    case ElementType::kBf16:
      return launch(Bf16());
    case ElementType::kFp16:
      return launch(Fp16());
  }
  return cudaErrorInvalidValue;
}

}  // namespace ballast
