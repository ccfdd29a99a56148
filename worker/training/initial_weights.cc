// SPDX-License-Identifier: Apache-2.0
#include "worker/training/initial_weights.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/storage/checksum.h"

namespace ballast {
namespace {

// Returns up to five names and the number of the others.
std::string List(const std::vector<std::string>& names) {
  constexpr size_t kShown = 5;
  const size_t shown = std::min(names.size(), kShown);
  return absl::StrCat(absl::StrJoin(names.begin(), names.begin() + shown, ", "),
                      names.size() > shown ? absl::StrCat(" and ", names.size() - shown, " more") : "");
}

absl::Status Check(const LoadedTensor& tensor, const std::vector<int64_t>& want) {
  if (tensor.shape != want) {
    return absl::InvalidArgumentError(absl::StrCat("tensor \"", tensor.name, "\" has shape [",
                                                   absl::StrJoin(tensor.shape, ", "), "], want [",
                                                   absl::StrJoin(want, ", "), "]"));
  }
  for (size_t i = 0; i < tensor.values.size(); ++i) {
    if (std::isfinite(tensor.values[i])) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("tensor \"", tensor.name, "\": element ", i, " is ", tensor.values[i], ", want a finite number"));
  }
  return absl::OkStatus();
}

uint64_t ChecksumOf(const Safetensors& file) {
  StreamChecksum checksum;
  for (const LoadedTensor& tensor : file.tensors) {
    checksum.Add(absl::StrCat(tensor.name, "\n"));
    checksum.Add({reinterpret_cast<const char*>(tensor.values.data()), tensor.values.size() * sizeof(float)});
  }
  return checksum.value();
}

}  // namespace

absl::StatusOr<LoadedNames> LoadTensors(const Safetensors& file, TrainableModel& model) {
  const absl::StatusOr<std::vector<Statistic>> statistics = model.Statistics();
  if (!statistics.ok()) return statistics.status();
  std::map<std::string, const LoadedTensor*> left;
  for (const LoadedTensor& tensor : file.tensors) left[tensor.name] = &tensor;
  LoadedNames names;
  // Sets a tensor of the model with `set` if the file has it.
  const auto load = [&](const std::string& name, const std::vector<int64_t>& shape, auto set) -> absl::StatusOr<bool> {
    const auto found = left.find(name);
    if (found == left.end()) {
      names.missing.push_back(name);
      return false;
    }
    absl::Status status = Check(*found->second, shape);
    if (status.ok()) status = set(found->second->values);
    if (!status.ok()) return status;
    left.erase(found);
    return true;
  };
  for (size_t i = 0; i < model.parameters().size(); ++i) {
    const Parameter& parameter = model.parameters()[i];
    const absl::StatusOr<bool> loaded = load(
        parameter.name, parameter.shape, [&](absl::Span<const float> values) { return model.SetParameter(i, values); });
    if (!loaded.ok()) return loaded.status();
    if (*loaded) names.parameters.push_back(i);
  }
  for (const Statistic& statistic : *statistics) {
    const absl::StatusOr<bool> loaded =
        load(statistic.name, {static_cast<int64_t>(statistic.values.size())},
             [&](absl::Span<const float> values) { return model.SetStatistic(statistic.name, values); });
    if (!loaded.ok()) return loaded.status();
    names.statistics += *loaded;
  }
  for (const auto& [name, tensor] : left) names.unused.push_back(name);
  return names;
}

absl::StatusOr<InitialWeights> LoadInitialWeights(const std::string& path, TrainableModel& model) {
  const absl::StatusOr<Safetensors> file = ReadSafetensors(path);
  if (!file.ok()) return absl::Status(file.status().code(), absl::StrCat("init_from: ", file.status().message()));
  const auto refuse = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("init_from: ", path, ": ", why));
  };
  const absl::StatusOr<LoadedNames> names = LoadTensors(*file, model);
  if (absl::IsInvalidArgument(names.status())) return refuse(names.status().message());
  if (!names.ok()) return names.status();
  if (names->parameters.empty()) {
    return refuse(absl::StrCat("has none of the model's tensors (", List(names->missing), "), but ",
                               names->unused.empty() ? "no tensor" : List(names->unused)));
  }
  std::vector<bool> trained(model.parameters().size());
  for (const ParameterGroup& group : model.parameter_groups()) {
    std::fill_n(trained.begin() + group.first, group.count, true);
  }
  InitialWeights initial{.checksum = ChecksumOf(*file)};
  size_t frozen = 0;
  for (size_t i = 0; i < trained.size(); ++i) {
    const bool loaded = std::binary_search(names->parameters.begin(), names->parameters.end(), i);
    if (loaded && trained[i]) initial.provided.push_back(i);
    if (trained[i]) continue;
    if (!loaded) return refuse(absl::StrCat("lacks \"", model.parameters()[i].name, "\" of a layer to freeze"));
    ++frozen;
  }
  initial.report =
      absl::StrCat("init_from ", path, ": ", names->parameters.size() + names->statistics, " tensors loaded, ", frozen,
                   " of them frozen; ", names->missing.size(), " initialized as usual",
                   names->missing.empty() ? "" : ": ", List(names->missing), "; ", names->unused.size(), " not used",
                   names->unused.empty() ? "" : ": ", List(names->unused));
  return initial;
}

}  // namespace ballast
