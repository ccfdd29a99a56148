// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "worker/device/device.h"

namespace ballast {

// A device under the name that job files and errors use: "cpu", or a GPU's index. Does not own it.
struct NamedDevice {
  std::string name;
  Device* device = nullptr;
};

// Adds the name of device `index` to its error if there are several devices.
inline absl::Status Named(absl::Span<const NamedDevice> devices, size_t index, const absl::Status& status) {
  if (status.ok() || devices.size() == 1) return status;
  return absl::Status(status.code(), absl::StrCat("device ", devices[index].name, ": ", status.message()));
}

}  // namespace ballast
