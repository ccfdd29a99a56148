// SPDX-License-Identifier: Apache-2.0
#include "worker/predict/saved_model.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/run/run_folder.h"
#include "common/run/safetensors.h"
#include "worker/device/factory/worker_devices.h"
#include "worker/model/layer_chain.h"
#include "worker/rows/table_saver.h"
#include "worker/training/initial_weights.h"
#include "worker/training/training_loop.h"

namespace ballast {
namespace {

// Unless the device has too little memory.
constexpr int64_t kBatch = 256;

// Returns the bags of some of the examples.
IdBags BagsOf(const IdBags& all, size_t fields, int64_t first, int64_t count) {
  const size_t begin = first == 0 || fields == 0 ? 0 : all.ends[first * fields - 1];
  IdBags bags;
  for (size_t i = first * fields; i < (first + count) * fields; ++i) {
    bags.ends.push_back(static_cast<uint32_t>(all.ends[i] - begin));
  }
  const size_t size = bags.ends.empty() ? 0 : bags.ends.back();
  bags.ids.assign(all.ids.begin() + begin, all.ids.begin() + begin + size);
  return bags;
}

// Before any memory is allocated for the layers, because a damaged description may ask for any amount.
absl::Status CheckSize(const Safetensors& file, const ModelDescription& description) {
  const absl::StatusOr<LayerChain> chain =
      BuildLayerChain(description.model, description.features, {.id_fields = description.id_fields});
  if (!chain.ok()) return chain.status();
  uint64_t have = 0, want = 0;
  for (const LoadedTensor& tensor : file.tensors) have += tensor.values.size();
  for (const ChainNode& node : chain->nodes) {
    if (node.layer == nullptr) continue;
    for (const Parameter& parameter : node.layer->Parameters()) want += parameter.elements;
  }
  if (want <= have) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("has ", have, " weights, want ", want, " for its layers"));
}

absl::Status Fill(const Safetensors& file, Model& model) {
  const absl::StatusOr<LoadedNames> names = LoadTensors(file, model);
  if (!names.ok() || names->missing.empty()) return names.status();
  return absl::InvalidArgumentError(absl::StrCat("lacks \"", absl::StrJoin(names->missing, "\", \""), "\""));
}

// Makes the layers for the largest batch for which there is memory.
absl::Status MakeModel(const SavedModel::Options& options, SavedModel& to) {
  absl::StatusOr<std::unique_ptr<Device>> device = CreateDevice(options.device, options.threads, options.cuda);
  if (!device.ok()) return device.status();
  to.device = *std::move(device);
  absl::Status status;
  for (to.max_batch = kBatch; to.max_batch > 0; to.max_batch /= 4) {
    ModelOptions model_options{.features = to.description.features,
                               .id_fields = to.description.id_fields,
                               .max_batch = to.max_batch,
                               .devices = {{"cpu", to.device.get()}}};
    absl::StatusOr<std::unique_ptr<Model>> model = Model::Create(to.description.model, model_options);
    if (model.ok()) {
      to.model = *std::move(model);
      return absl::OkStatus();
    }
    status = model.status();
    if (!absl::IsResourceExhausted(status)) break;
  }
  return status;
}

absl::Status UseTables(std::vector<LoadedTable> tables, SavedModel& to) {
  for (size_t i = 0; i < tables.size(); ++i) {
    const v1::EmbeddingTable& want = to.description.model.tables(static_cast<int>(i));
    // The initial values of rows follow from the name, too.
    if (tables[i].spec.name() != want.name()) {
      return absl::InvalidArgumentError(
          absl::StrCat("table \"", want.name(), "\": got the rows of table \"", tables[i].spec.name(), "\""));
    }
    if (tables[i].spec.dim() == want.dim()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("table \"", want.name(), "\": got rows of dim ", tables[i].spec.dim(), ", want ", want.dim()));
  }
  if (tables.empty()) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<SavedRows>> rows = SavedRows::Make(std::move(tables));
  if (!rows.ok()) return rows.status();
  to.rows = *std::move(rows);
  to.indexer.emplace(FieldsOfTables(*to.model), to.description.id_fields.size());
  return absl::OkStatus();
}

// Reads the tables of the model from the folder beside its file.
absl::StatusOr<std::vector<LoadedTable>> ReadTables(const SavedModel& model) {
  const std::string folder = RunFolder(std::filesystem::path(model.path).parent_path().string()).tables();
  std::vector<LoadedTable> tables;
  for (const v1::EmbeddingTable& table : model.description.model.tables()) {
    absl::StatusOr<LoadedTable> read = ReadTableFiles(FolderOfTable(folder, table.name()));
    if (absl::IsNotFound(read.status())) {
      return absl::NotFoundError(absl::StrCat("the model has table \"", table.name(),
                                              "\", whose rows are missing: ", read.status().message(),
                                              "; a run writes them beside model.safetensors at its end"));
    }
    if (!read.ok()) return read.status();
    tables.push_back(*std::move(read));
  }
  return tables;
}

absl::Status Load(const Safetensors& file, const SavedModel::Options& options, SavedModel& to) {
  absl::StatusOr<ModelDescription> description = ParseMetadata(file.metadata);
  if (!description.ok()) return description.status();
  to.description = *std::move(description);
  if (absl::Status status = CheckSize(file, to.description); !status.ok()) return status;
  if (absl::Status status = MakeModel(options, to); !status.ok()) return status;
  return Fill(file, *to.model);
}

}  // namespace

absl::StatusOr<SavedModel> SavedModel::Open(const std::string& path, const Options& options) {
  std::error_code error;
  const std::string name = std::filesystem::is_directory(path, error) ? RunFolder(path).model() : path;
  const absl::StatusOr<Safetensors> file = ReadSafetensors(name);
  if (!file.ok()) return file.status();
  SavedModel saved = {.path = name};
  if (absl::Status status = Load(*file, options, saved); !status.ok()) {
    return absl::Status(status.code(), absl::StrCat(name, ": ", status.message()));
  }
  absl::StatusOr<std::vector<LoadedTable>> tables = ReadTables(saved);
  absl::Status status = tables.ok() ? UseTables(*std::move(tables), saved) : tables.status();
  if (!status.ok()) return absl::Status(status.code(), absl::StrCat(name, ": ", status.message()));
  return saved;
}

absl::StatusOr<SavedModel> SavedModel::Make(ModelDescription description, absl::Span<const v1::TableSpec> tables,
                                            const Options& options) {
  SavedModel made = {.description = std::move(description)};
  if (absl::Status status = MakeModel(options, made); !status.ok()) return status;
  std::vector<LoadedTable> empty;
  for (const v1::TableSpec& spec : tables) empty.push_back({spec, std::make_shared<RowCopy>(spec)});
  if (absl::Status status = UseTables(std::move(empty), made); !status.ok()) return status;
  return made;
}

absl::Status SavedModel::Predict(absl::Span<const float> features, const IdBags& ids, absl::Span<float> outputs) {
  const int64_t width = model->outputs(), features_of_one = description.features;
  const int64_t examples = outputs.size() / width;
  const size_t fields = description.id_fields.size();
  if (features.size() != static_cast<size_t>(examples * features_of_one) ||
      (rows != nullptr && ids.ends.size() != examples * fields)) {
    return absl::InvalidArgumentError(absl::StrCat("got ", features.size(), " features and ", ids.ends.size(),
                                                   " bags, want ", features_of_one, " and ", fields, " for each of ",
                                                   examples, " examples"));
  }
  // The loss is computed, too, but its result is not read; every loss accepts the label 0.
  const std::vector<float> labels(std::min(examples, max_batch));
  std::vector<BatchRows> batch_rows;
  for (int64_t begin = 0; begin < examples; begin += max_batch) {
    const int64_t count = std::min(max_batch, examples - begin);
    BatchView view{.features = features.subspan(begin * features_of_one, count * features_of_one),
                   .labels = absl::MakeConstSpan(labels).first(count),
                   .examples = count};
    if (rows != nullptr) {
      indexer->Index(BagsOf(ids, fields, begin, count), batch_rows);
      const absl::StatusOr<absl::Span<const RowsView>> fetched = rows->FetchForEvaluation(/*step=*/0, batch_rows);
      if (!fetched.ok()) return fetched.status();
      view.tables = *fetched;
    }
    const absl::StatusOr<BatchResult> result = model->Evaluate(view, outputs.subspan(begin * width, count * width));
    if (!result.ok()) return result.status();
  }
  return absl::OkStatus();
}

}  // namespace ballast
