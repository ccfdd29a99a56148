// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <iostream>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "worker/device/device.h"
#include "worker/device/factory/worker_devices.h"

// Shared code of the benchmarks in this directory.
namespace ballast {

// Milliseconds per call. First calls for `seconds` without counting, so that the GPU's clock is at full speed, then
// counts about as many seconds of calls, and issues all of those before it waits.
inline absl::StatusOr<double> MillisecondsPerCall(double seconds, absl::FunctionRef<absl::Status()> call,
                                                  absl::FunctionRef<absl::Status()> wait) {
  using Clock = std::chrono::steady_clock;
  const auto run = [&](int64_t count) -> absl::StatusOr<double> {
    const auto begin = Clock::now();
    for (int64_t i = 0; i < count; ++i) {
      if (absl::Status status = call(); !status.ok()) return status;
    }
    if (absl::Status status = wait(); !status.ok()) return status;
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  constexpr int kCallsAtOnce = 10;
  double elapsed = 0;
  int64_t calls = 0;
  while (elapsed < seconds) {
    const absl::StatusOr<double> took = run(kCallsAtOnce);
    if (!took.ok()) return took;
    elapsed += *took;
    calls += kCallsAtOnce;
  }
  const int64_t counted = std::max<int64_t>(1, calls * seconds / elapsed);
  const absl::StatusOr<double> took = run(counted);
  if (!took.ok()) return took;
  return *took / counted * 1e3;
}

// Measures a round for each line of standard input and prints its JSON object, so that a script can let several
// programs take turns.
inline absl::Status MeasureRounds(absl::FunctionRef<absl::StatusOr<std::string>()> measure) {
  for (std::string line; std::getline(std::cin, line);) {
    const absl::StatusOr<std::string> found = measure();
    if (!found.ok()) return found.status();
    std::cout << *found << std::endl;
  }
  return absl::OkStatus();
}

inline absl::StatusOr<Precision> PrecisionNamed(absl::string_view name) {
  if (name == "fp32") return Precision::kFp32;
  if (name == "tf32") return Precision::kTf32;
  if (name == "bf16") return Precision::kBf16;
  if (name == "fp16") return Precision::kFp16;
  return absl::InvalidArgumentError(absl::StrCat("--precision: got \"", name, "\", want fp32, tf32, bf16 or fp16"));
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
