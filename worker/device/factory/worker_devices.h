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

// Owns the devices that one worker computes on: its own, and either more of its kind to split batches over, or what
// layers ask for.
// Thread safety: none.
class WorkerDevices {
 public:
  // A layer, as errors are to call it, and the device that it asks for.
  struct Placed {
    std::string layer;
    std::string device;
  };
  struct Request {
    // "auto", "cpu" or "cuda": of the worker's own device.
    std::string kind = "auto";
    // Of the CPU.
    int threads = 1;
    // Over how many GPUs batches are split: "all", or a number from 1; empty for 1.
    std::string gpus;
    std::vector<Placed> placed;
    // Of all GPUs, but for their numbers.
    CudaOptions cuda;
  };

  // INVALID_ARGUMENT where the request is wrong in itself, asks for several GPUs both ways, or for a device that is not
  // there: the message says which there are. FAILED_PRECONDITION where the worker's own cannot be had.
  static absl::StatusOr<WorkerDevices> Open(const Request& request);

  // The worker's own first.
  const std::vector<NamedDevice>& devices() const { return names_; }
  // Whether they share batches; else layers may ask for each.
  bool split() const { return split_; }
  // For people.
  std::string Describe() const;
  // What all compute in from now on: see Device.
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

}  // namespace ballast
