// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "worker/device/device.h"
#include "worker/device/factory/worker_devices.h"

// Shared code of the benchmarks in this directory.
namespace ballast {

// Milliseconds per call over `calls` calls, after `warm_up` uncounted ones; issues all of them before it waits.
inline absl::StatusOr<double> MillisecondsPerCall(int warm_up, int calls, absl::FunctionRef<absl::Status()> call,
                                                  absl::FunctionRef<absl::Status()> wait) {
  const auto run = [&](int count) -> absl::Status {
    for (int i = 0; i < count; ++i) {
      if (absl::Status status = call(); !status.ok()) return status;
    }
    return wait();
  };
  if (absl::Status status = run(warm_up); !status.ok()) return status;
  const auto begin = std::chrono::steady_clock::now();
  if (absl::Status status = run(calls); !status.ok()) return status;
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count() / calls;
}

inline std::optional<Precision> PrecisionNamed(const char* name) {
  if (std::strcmp(name, "fp32") == 0) return Precision::kFp32;
  if (std::strcmp(name, "tf32") == 0) return Precision::kTf32;
  if (std::strcmp(name, "bf16") == 0) return Precision::kBf16;
  if (std::strcmp(name, "fp16") == 0) return Precision::kFp16;
  return std::nullopt;
}

// Opens a device with this precision; a CPU device without it keeps its own precision.
inline absl::StatusOr<std::unique_ptr<Device>> OpenDeviceFor(const std::string& kind, Precision precision) {
  constexpr int kThreads = 2;
  absl::StatusOr<std::unique_ptr<Device>> device = CreateDevice(kind, kThreads, CachingCudaOptions());
  if (!device.ok()) return device;
  if (const auto got = (*device)->SetPrecision(precision); !got.ok() && kind != "cpu") return got.status();
  return device;
}

}  // namespace ballast
