// SPDX-License-Identifier: Apache-2.0
#include "worker/device/factory/worker_devices.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "worker/device/cpu/cpu_device.h"
#include "worker/device/factory/cuda_device.h"

namespace ballast {
namespace {

constexpr char kCpu[] = "cpu";

absl::StatusOr<std::unique_ptr<Device>> OpenGpu(CudaOptions options, int number) {
  options.gpu = number;
  return CreateCudaDevice(options);
}

// The name of the device that CreateDevice opens for this kind.
std::string NameOfOwn(absl::string_view kind) {
  const absl::StatusOr<std::vector<int>> usable = UsableCudaGpus();
  return kind == kCpu || !usable.ok() ? kCpu : absl::StrCat(usable->front());
}

// 0 means all. INVALID_ARGUMENT if the text is not a number.
absl::StatusOr<int> ParseGpus(const std::string& text) {
  if (text.empty()) return 1;
  if (text == "all") return 0;
  int number = 0;
  if (absl::SimpleAtoi(text, &number) && number >= 1 && number <= 64) return number;
  return absl::InvalidArgumentError(absl::StrCat("--gpus: got \"", text, "\", want all, or a number from 1 to 64"));
}

}  // namespace

absl::StatusOr<WorkerDevices> WorkerDevices::Open(const Request& request) {
  WorkerDevices devices;
  const absl::StatusOr<int> gpus = ParseGpus(request.gpus);
  if (!gpus.ok()) return gpus.status();
  if (*gpus == 1) {
    absl::StatusOr<std::unique_ptr<Device>> own = CreateDevice(request.kind, request.threads, request.cuda);
    if (!own.ok()) return own.status();
    devices.Add(NameOfOwn(request.kind), *std::move(own));
  } else if (absl::Status status = devices.OpenSplit(request); !status.ok()) {
    return status;
  }
  if (absl::Status status = devices.OpenPlaced(request); !status.ok()) return status;
  return devices;
}

void WorkerDevices::Add(std::string name, std::unique_ptr<Device> device) {
  names_.push_back({std::move(name), device.get()});
  owned_.push_back(std::move(device));
}

absl::Status WorkerDevices::OpenSplit(const Request& request) {
  if (request.kind != "cuda" && request.kind != "auto") {
    return absl::InvalidArgumentError(absl::StrCat("--gpus: got ", request.gpus, " with --device ", request.kind,
                                                   ", want it with --device cuda or auto"));
  }
  const absl::StatusOr<std::vector<int>> usable = UsableCudaGpus();
  if (!usable.ok() && request.kind == "auto" && request.gpus == "all") {
    absl::StatusOr<std::unique_ptr<Device>> own = CreateDevice(kCpu, request.threads, request.cuda);
    if (!own.ok()) return own.status();
    Add(kCpu, *std::move(own));
    return absl::OkStatus();
  }
  if (!usable.ok()) return usable.status();
  const size_t wanted = request.gpus == "all" ? usable->size() : ParseGpus(request.gpus).value_or(1);
  if (wanted > usable->size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--gpus: got ", wanted, ", want at most ", usable->size(), ", the GPUs that this worker sees"));
  }
  for (size_t i = 0; i < wanted; ++i) {
    absl::StatusOr<std::unique_ptr<Device>> gpu = OpenGpu(request.cuda, (*usable)[i]);
    if (!gpu.ok()) return gpu.status();
    Add(absl::StrCat((*usable)[i]), *std::move(gpu));
  }
  split_ = wanted > 1;
  return absl::OkStatus();
}

absl::Status WorkerDevices::OpenPlaced(const Request& request) {
  if (request.placed.empty()) return absl::OkStatus();
  if (split_) {
    return absl::InvalidArgumentError(absl::StrCat(request.placed[0].layer, ": device is \"", request.placed[0].device,
                                                   "\", want none with --gpus ", request.gpus,
                                                   ": its GPUs share each batch"));
  }
  std::vector<std::string> there = {kCpu};
  for (const int number : UsableCudaGpus().value_or(std::vector<int>())) there.push_back(absl::StrCat(number));
  for (const Placed& placed : request.placed) {
    if (std::find(there.begin(), there.end(), placed.device) == there.end()) {
      return absl::InvalidArgumentError(absl::StrCat(placed.layer, ": device is \"", placed.device, "\", want ",
                                                     absl::StrJoin(there, " or "), ": this worker has no other"));
    }
    const auto is_open = [&](const NamedDevice& device) { return device.name == placed.device; };
    if (std::any_of(names_.begin(), names_.end(), is_open)) continue;
    int number = 0;
    absl::StatusOr<std::unique_ptr<Device>> device = absl::SimpleAtoi(placed.device, &number)
                                                         ? OpenGpu(request.cuda, number)
                                                         : CreateDevice(kCpu, request.threads, request.cuda);
    if (!device.ok()) {
      return absl::Status(device.status().code(), absl::StrCat(placed.layer, ": ", device.status().message()));
    }
    Add(placed.device, *std::move(device));
  }
  return absl::OkStatus();
}

std::string WorkerDevices::Describe() const {
  if (names_.size() == 1) return names_[0].device->Describe();
  const auto each = [](std::string* text, const NamedDevice& device) {
    absl::StrAppend(text, device.name, ": ", device.device->Describe());
  };
  return absl::StrJoin(names_, ", ", each);
}

absl::StatusOr<Precision> WorkerDevices::SetPrecision(Precision precision) {
  Precision all = precision;
  for (const NamedDevice& each : names_) {
    const absl::StatusOr<Precision> one = each.device->SetPrecision(precision);
    if (!one.ok()) return one.status();
    if (*one != precision) all = *one;
  }
  return all;
}

absl::StatusOr<std::unique_ptr<Device>> CreateDevice(std::string_view kind, int threads, const CudaOptions& cuda) {
  if (threads < 1 || threads > 1024) {
    return absl::InvalidArgumentError(absl::StrCat("--threads: got ", threads, ", want a number from 1 to 1024"));
  }
  if (kind == "cpu") return CreateCpuDevice(threads);
  if (kind == "cuda") return CreateCudaDevice(cuda);
  if (kind == "auto") {
    absl::StatusOr<std::unique_ptr<Device>> gpu = CreateCudaDevice(cuda);
    if (gpu.ok()) return gpu;
    return CreateCpuDevice(threads);
  }
  return absl::InvalidArgumentError(absl::StrCat("--device: got \"", std::string(kind), "\", want auto, cpu or cuda"));
}

}  // namespace ballast
