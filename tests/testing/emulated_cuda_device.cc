// SPDX-License-Identifier: Apache-2.0
// Gives a worker emulated GPUs in place of real ones. BALLAST_EMULATED_GPU configures them with comma-separated words
// "name=number": the names of emulator::Settings, and
//   full=1       another process uses all of its memory
//   exclusive=1  another process has exclusive use of it
//   lost_after=N it is lost after N calls
#include <cstdlib>
#include <map>
#include <string>

#include "absl/base/call_once.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "worker/device/cuda/cuda_device.h"
#include "worker/device/cuda/emulated_nccl.h"
#include "worker/device/cuda/emulator/emulated_gpu.h"
#include "worker/device/cuda/gpu_choice.h"
#include "worker/device/cuda/nccl_reducer.h"
#include "worker/device/factory/cuda_device.h"

namespace ballast {
namespace {

void Configure() {
  const char* const text = std::getenv("BALLAST_EMULATED_GPU");
  std::map<std::string, int64_t> words;
  for (const auto& word : absl::StrSplit(text == nullptr ? "" : text, ',', absl::SkipEmpty())) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(word, '=');
    if (!absl::SimpleAtoi(parts.second, &words[parts.first])) std::abort();
  }
  emulator::Settings settings;
  settings.schedule = emulator::Schedule::kRandom;
  const auto take = [&](const char* name, auto* value) {
    const auto found = words.find(name);
    if (found == words.end()) return;
    *value = found->second;
    words.erase(found);
  };
  take("seed", &settings.seed);
  take("timed", &settings.timed);
  take("devices", &settings.devices);
  take("driver_version", &settings.driver_version);
  take("compute_major", &settings.compute_major);
  take("memory_bytes", &settings.memory_bytes);
  int64_t full = 0, exclusive = 0, lost_after = -1;
  take("exclusive", &exclusive);
  if (exclusive != 0) {
    settings.compute_mode = cudaComputeModeExclusiveProcess;
    settings.held = true;
  }
  emulator::Reset(settings);
  take("full", &full);
  take("lost_after", &lost_after);
  if (full != 0) emulator::FailCall("cudaStreamCreateWithFlags", cudaErrorMemoryAllocation, 0);
  if (lost_after >= 0) emulator::FailEverything(cudaErrorECCUncorrectable, static_cast<int>(lost_after));
  // With a misspelled word a test would check nothing.
  if (!words.empty()) std::abort();
}

void ConfigureOnce() {
  static absl::once_flag once;
  absl::call_once(once, Configure);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(const CudaOptions& options) {
  ConfigureOnce();
  return OpenCudaDevice(options);
}

absl::StatusOr<std::vector<int>> UsableCudaGpus() {
  ConfigureOnce();
  const absl::StatusOr<std::vector<Gpu>> gpus = UsableGpus();
  if (!gpus.ok()) return gpus.status();
  std::vector<int> numbers;
  for (const Gpu& gpu : *gpus) numbers.push_back(gpu.index);
  return numbers;
}

absl::StatusOr<std::unique_ptr<Reducer>> CreateCudaReducer(absl::Span<const NamedDevice> devices) {
  return MakeNcclReducer(emulator::EmulatedNccl(), devices);
}

}  // namespace ballast
