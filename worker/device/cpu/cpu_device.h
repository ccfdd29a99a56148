// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "worker/device/cpu/convolution.h"
#include "worker/device/device.h"

namespace ballast {

// The reference device, on OpenBLAS, oneDNN where the build has it, and plain loops. Each operation is done when its
// call returns; its results are a function of its arguments and the number of threads alone. The number of threads, at
// least 1, is the process's.
std::unique_ptr<Device> CreateCpuDevice(int threads);

// The same with so much memory, instead of all that the machine has.
std::unique_ptr<Device> CreateCpuDevice(int threads, int64_t memory_bytes);

// The same with convolutions of the caller's choice.
std::unique_ptr<Device> CreateCpuDevice(int threads, std::unique_ptr<Convolution> convolution);

}  // namespace ballast
