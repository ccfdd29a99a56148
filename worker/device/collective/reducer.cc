// SPDX-License-Identifier: Apache-2.0
#include "worker/device/collective/reducer.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/device/transfer.h"

namespace ballast {
namespace {

class HostReducer : public Reducer {
 public:
  HostReducer(absl::Span<const NamedDevice> devices, std::unique_ptr<Buffer> arrived)
      : devices_(devices.begin(), devices.end()), arrived_(std::move(arrived)) {}

  std::string Describe() const override { return "on the first device"; }

  absl::Status Sum(absl::Span<const Matrix> parts) override {
    if (parts.size() != devices_.size()) {
      return absl::InternalError(absl::StrCat("reducer: got ", parts.size(), " parts, want ", devices_.size()));
    }
    Device& first = *devices_[0].device;
    for (size_t i = 1; i < parts.size(); ++i) {
      const Matrix arrived{arrived_.get(), parts[i].rows, parts[i].columns};
      absl::Status status = transfer_.Copy(*devices_[i].device, parts[i], first, arrived);
      if (!status.ok()) {
        return absl::Status(status.code(), absl::StrCat("sum of gradients over devices ", devices_[0].name, " and ",
                                                        devices_[i].name, ": ", status.message()));
      }
      first.Axpy(1.0f, arrived, parts[0]);
    }
    return absl::OkStatus();
  }

  // A copy ends when its device fails.
  void Abort() override {}

 private:
  const std::vector<NamedDevice> devices_;
  // Part copied from another device, on the first one.
  const std::unique_ptr<Buffer> arrived_;
  Transfer transfer_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Reducer>> CreateHostReducer(absl::Span<const NamedDevice> devices,
                                                           int64_t largest_elements) {
  absl::StatusOr<std::unique_ptr<Buffer>> arrived = devices[0].device->Allocate(largest_elements);
  if (!arrived.ok()) {
    return absl::Status(arrived.status().code(),
                        absl::StrCat("device ", devices[0].name, ": cannot allocate the buffer for sums of gradients: ",
                                     arrived.status().message()));
  }
  return std::make_unique<HostReducer>(devices, *std::move(arrived));
}

}  // namespace ballast
