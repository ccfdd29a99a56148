// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ballast/v1/job.pb.h"
#include "worker/model/layers/layer.h"
#include "worker/model/layers/layer_table.h"

namespace ballast {

// The numbers of a `custom` layer in the job file. Remembers which ones were read. Thread safety: none.
class CustomNumbers {
 public:
  explicit CustomNumbers(const v1::Custom& config) : given_(config.numbers().begin(), config.numbers().end()) {}

  // Returns the number; nothing if the job file does not give it. All of them are finite.
  std::optional<double> Read(const std::string& name);

  // The numbers that Read was asked for, and those that the job file gives although nobody asked for them.
  const std::vector<std::string>& read() const { return read_; }
  std::vector<std::string> unread() const;

 private:
  const std::map<std::string, double> given_;
  std::vector<std::string> read_;
};

// A type of layer that `custom { type: "..." }` of a job file names. A source file that is linked into the worker
// defines it at namespace scope, and its constructor registers it before main:
//   const ballast::CustomLayerType kSilu("silu", MakeSilu);
// Thread safety: immutable after main has begun.
class CustomLayerType {
 public:
  // Returns the layer. INVALID_ARGUMENT, from LayerError, if a number is out of range or the input does not fit.
  using Make = absl::StatusOr<std::unique_ptr<Layer>>(const LayerSite& site, CustomNumbers& numbers);

  CustomLayerType(std::string name, Make* make);
  CustomLayerType(const CustomLayerType&) = delete;
  CustomLayerType& operator=(const CustomLayerType&) = delete;

  const std::string& name() const { return name_; }
  Make* make() const { return make_; }
  // The type registered before this one; null for the first.
  const CustomLayerType* before() const { return before_; }

 private:
  const std::string name_;
  Make* const make_;
  const CustomLayerType* const before_;
};

}  // namespace ballast
