// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>
#include <set>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/text/nearest_name.h"
#include "worker/model/layers/layer_table.h"

namespace ballast {
namespace {

// The input, then one vector for each field of ids: the sum or the mean of rows of a table.
class Embedding : public Layer {
 public:
  Embedding(std::string name, TableUse use, int64_t inputs)
      : name_(std::move(name)), use_(std::move(use)), inputs_(inputs) {}

  std::string Describe() const override {
    return absl::StrCat("embedding of ", use_.fields.size(), " x ", use_.dim, " from ", name_);
  }
  ImageShape output() const override { return {1, 1, inputs_ + static_cast<int64_t>(use_.fields.size()) * use_.dim}; }
  LayerTraits traits() const override { return {.table = use_}; }
  std::vector<Parameter> Parameters() const override { return {}; }
  std::vector<LayerMemory> Memory() const override { return {}; }

  void Forward(const Pass& pass, Matrix x, Matrix y) const override {
    if (inputs_ > 0) pass.device.CopyColumns(inputs_, x, y);
    pass.device.PoolRows(pass.rows->values, pass.rows->bags, inputs_, y);
  }

  void Backward(const Pass& pass, Matrix, Matrix dy, const Matrix* dx) const override {
    if (dx != nullptr) pass.device.CopyColumns(inputs_, dy, *dx);
    pass.device.PoolRowsBackward(dy, pass.rows->bags, inputs_, pass.rows->gradient);
  }

 private:
  // Name of the table.
  const std::string name_;
  const TableUse use_;
  const int64_t inputs_;
};

constexpr int64_t kMaxOutputs = int64_t{1} << 30;

// Returns the indices of the fields that the layer names, or of all.
absl::StatusOr<std::vector<size_t>> FieldsOf(const LayerSite& site) {
  const std::vector<std::string>& known = site.ids.fields;
  const v1::Embedding& config = site.config.embedding();
  if (known.empty()) return LayerError(site.name, "the data has no fields of ids, want at least 1");
  std::vector<size_t> fields(known.size());
  std::iota(fields.begin(), fields.end(), size_t{0});
  if (config.fields().empty()) return fields;
  fields.clear();
  for (const std::string& name : config.fields()) {
    const auto found = absl::c_find(known, name);
    if (found == known.end()) {
      const std::string* const nearest = FindNearestName(name, known).name;
      return LayerError(site.name, "the data has no field of ids \"", name, "\", want one of its ", known.size(),
                        nearest == nullptr ? "" : absl::StrCat(", like \"", *nearest, "\""));
    }
    fields.push_back(found - known.begin());
  }
  if (std::set<size_t>(fields.begin(), fields.end()).size() < fields.size()) {
    return LayerError(site.name, "got a field of ids twice in ", absl::StrJoin(config.fields(), ", "),
                      ", want each once");
  }
  return fields;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Layer>> MakeEmbedding(const LayerSite& site) {
  const v1::Embedding& config = site.config.embedding();
  size_t table = 0;
  while (table < static_cast<size_t>(site.ids.tables.size()) && site.ids.tables[table].name() != config.table()) {
    ++table;
  }
  if (table == static_cast<size_t>(site.ids.tables.size())) {
    return LayerError(site.name, "the model has no table \"", config.table(), "\", want one of model.tables");
  }
  absl::StatusOr<std::vector<size_t>> fields = FieldsOf(site);
  if (!fields.ok()) return fields.status();
  const int64_t dim = site.ids.tables[table].dim();
  if (dim < 1 || dim > 4096) return LayerError(site.name, "its table has dim ", dim, ", want 1 to 4096");
  const int64_t inputs = site.input.elements();
  if (inputs > kMaxOutputs || static_cast<int64_t>(fields->size()) > kMaxOutputs / dim) {
    return LayerError(site.name, "gets ", inputs, " inputs and ", fields->size(), " fields of ", dim,
                      " elements, want at most ", kMaxOutputs, " outputs");
  }
  return std::make_unique<Embedding>(config.table(),
                                     TableUse{table, dim, *std::move(fields), config.pooling() == v1::AVERAGE}, inputs);
}

}  // namespace ballast
