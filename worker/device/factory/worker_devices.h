// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/device/cuda_options.h"
#include "worker/device/device.h"
#include "worker/device/named_device.h"

namespace ballast {

// Owns the devices of one worker: its own device, and either more of the same kind that split each batch, or the
// devices that layers request. Thread safety: none.
class WorkerDevices {
 public:
  // A layer, by its name in errors, and the device that it requests.
  struct Placed {
    std::string layer;
    std::string device;
  };
  struct Request {
    // "auto", "cpu" or "cuda"; the kind of the worker's own device.
    std::string kind = "auto";
    // Compute threads of the CPU device.
    int threads = 1;
    // Number of GPUs that split each batch: "all", or a number from 1; empty for 1.
    std::string gpus;
    std::vector<Placed> placed;
    // Options of all GPUs, without `gpu`.
    CudaOptions cuda;
  };

  // INVALID_ARGUMENT if the request is inconsistent, asks for several GPUs in both ways, or names a missing device: the
  // message lists those present. FAILED_PRECONDITION if the worker's own device is not usable.
  static absl::StatusOr<WorkerDevices> Open(const Request& request);

  // The worker's own device is first.
  const std::vector<NamedDevice>& devices() const { return names_; }
  // True if the devices split each batch; otherwise layers may request each of them.
  bool split() const { return split_; }
  std::string Describe() const;
  // Sets the precision of all devices: see Device.
  absl::StatusOr<Precision> SetPrecision(Precision precision);

 private:
  WorkerDevices() = default;
  void Add(std::string name, std::unique_ptr<Device> device);
  absl::Status OpenSplit(const Request& request);
  absl::Status OpenPlaced(const Request& request);

  std::vector<std::unique_ptr<Device>> owned_;
  std::vector<NamedDevice> names_;
  bool split_ = false;
};

// Opens a device of kind "cpu", "cuda", or "auto": CUDA if it is usable, otherwise the CPU. `threads`, 1 to 1024, are
// the CPU device's compute threads; `cuda` applies to a GPU. INVALID_ARGUMENT for another kind or number;
// FAILED_PRECONDITION if "cuda" is requested and not usable.
absl::StatusOr<std::unique_ptr<Device>> CreateDevice(std::string_view kind, int threads, const CudaOptions& cuda);

}  // namespace ballast
