// SPDX-License-Identifier: Apache-2.0
#include "worker/model/layers/custom_layer.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/job/kind_names.h"

namespace ballast {
namespace {

// The type registered last. A constant at the program's start, because types of other files register before main.
constinit const CustomLayerType* newest_type = nullptr;

// "silu or softsign".
std::string TypePhrase() {
  std::set<std::string> names;
  for (const CustomLayerType* type = newest_type; type != nullptr; type = type->before()) names.insert(type->name());
  if (names.empty()) return "none: this worker has no custom layers; BALLAST_WORKER_BINARY names one that has";
  return Phrase({names.begin(), names.end()});
}

absl::StatusOr<const CustomLayerType*> FindType(const LayerSite& site) {
  const CustomLayerType* found = nullptr;
  for (const CustomLayerType* type = newest_type; type != nullptr; type = type->before()) {
    if (type->name() != site.config.custom().type()) continue;
    if (found != nullptr) {
      return LayerError(site.name, "custom.type \"", type->name(), "\" is registered twice in this worker, want once");
    }
    found = type;
  }
  if (found != nullptr) return found;
  return LayerError(site.name, "custom.type is \"", site.config.custom().type(), "\", want ", TypePhrase());
}

}  // namespace

std::optional<double> CustomNumbers::Read(const std::string& name) {
  read_.push_back(name);
  const auto found = given_.find(name);
  if (found == given_.end()) return std::nullopt;
  return found->second;
}

std::vector<std::string> CustomNumbers::unread() const {
  std::vector<std::string> names;
  for (const auto& [name, number] : given_) {
    if (std::find(read_.begin(), read_.end(), name) == read_.end()) names.push_back(name);
  }
  return names;
}

CustomLayerType::CustomLayerType(std::string name, Make* make)
    : name_(std::move(name)), make_(make), before_(std::exchange(newest_type, this)) {}

absl::StatusOr<std::unique_ptr<Layer>> MakeCustom(const LayerSite& site) {
  const absl::StatusOr<const CustomLayerType*> type = FindType(site);
  if (!type.ok()) return type.status();
  for (const auto& [name, number] : site.config.custom().numbers()) {
    if (!std::isfinite(number)) {
      return LayerError(site.name, "custom.numbers \"", name, "\" is ", number, ", want a finite number");
    }
  }
  CustomNumbers numbers(site.config.custom());
  absl::StatusOr<std::unique_ptr<Layer>> layer = (*type)->make()(site, numbers);
  if (!layer.ok() || numbers.unread().empty()) return layer;
  return LayerError(site.name, "custom.numbers has \"", absl::StrJoin(numbers.unread(), "\" and \""), "\", want ",
                    numbers.read().empty() ? "none" : Phrase(numbers.read()), " for ", (*type)->name());
}

}  // namespace ballast
