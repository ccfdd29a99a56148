// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "worker/device/cpu/convolution.h"
#include "worker/device/device.h"

namespace ballast {

// The reference device, on OpenBLAS, oneDNN if the build has it, and plain loops. Each operation is done when its
// call returns; its results depend only on its arguments and the number of threads. That number, at least 1, applies
// to the whole process.
std::unique_ptr<Device> CreateCpuDevice(int threads);

// The same device limited to `memory_bytes`, instead of all memory of the machine.
std::unique_ptr<Device> CreateCpuDevice(int threads, int64_t memory_bytes);

// The same device with the given convolution.
std::unique_ptr<Device> CreateCpuDevice(int threads, std::unique_ptr<Convolution> convolution);

}  // namespace ballast
