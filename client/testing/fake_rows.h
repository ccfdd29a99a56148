// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "ballast/v1/table.pb.h"
#include "common/codecs/codec.h"
#include "common/tables/row_hash.h"

namespace ballast {

// Fake tables: rows begin with zeros, and gradients are subtracted. Remembers the ids, versions and gradients of each
// push. Each pull has the number of pushes and pulls before it as its clock. Thread safety: none.
class FakeRows {
 public:
  struct Row {
    std::vector<float> values;
    uint32_t version = 0;
  };
  // One table of a push or pull, as received; gradients and versions are of pushes.
  struct Batch {
    std::vector<uint64_t> ids;
    std::vector<float> gradients;
    std::vector<uint32_t> versions;
    v1::Encoding encoding = v1::ENCODING_UNSPECIFIED;
    std::optional<uint64_t> clock = std::nullopt;
  };

  void Declare(const v1::TableSpec& spec) { dims_[spec.id()] = spec.dim(); }

  // Returns false for an unknown table, ids that do not ascend by hash, or bytes that do not fit them.
  bool Push(const v1::RowGradients& gradients, v1::RowsOutcome& outcome) {
    const std::optional<Batch> batch = Read(gradients);
    if (!batch.has_value()) return false;
    const size_t dim = dims_[gradients.table_id()];
    for (size_t i = 0; i < batch->ids.size(); ++i) {
      Row& row = tables_[gradients.table_id()][batch->ids[i]];
      if (row.version == 0) outcome.set_created(outcome.created() + 1);
      row.values.resize(dim);
      for (size_t j = 0; j < dim; ++j) row.values[j] -= batch->gradients[i * dim + j];
      if (!batch->versions.empty() && batch->versions[i] > row.version) outcome.set_orphaned(outcome.orphaned() + 1);
      if (!batch->versions.empty() && batch->versions[i] < row.version) {
        outcome.set_max_staleness(std::max(outcome.max_staleness(), row.version - batch->versions[i]));
      }
      ++row.version;
    }
    outcome.set_applied(outcome.applied() + batch->ids.size());
    pushes_.push_back(*batch);
    if (gradients.has_clock()) pushes_.back().clock = gradients.clock();
    return true;
  }

  // Like Push. The values of missing rows are 0.5, or 0 for MISSING_ZERO.
  bool Pull(const v1::RowQuery& query, v1::Encoding encoding, v1::RowValues& values) {
    if (!dims_.contains(query.table_id())) return false;
    const std::optional<std::vector<uint64_t>> ids = ReadIds(query.table_id(), query.ids());
    if (!ids.has_value()) return false;
    std::vector<float> all;
    values.mutable_present()->resize((ids->size() + 7) / 8);
    for (size_t i = 0; i < ids->size(); ++i) {
      const auto row = tables_[query.table_id()].find((*ids)[i]);
      const bool present = row != tables_[query.table_id()].end();
      const float missing = query.missing() == v1::RowQuery::MISSING_ZERO ? 0 : 0.5f;
      const std::vector<float> none(dims_[query.table_id()], missing);
      const std::vector<float>& from = present ? row->second.values : none;
      all.insert(all.end(), from.begin(), from.end());
      if (present) (*values.mutable_present())[i / 8] |= static_cast<char>(1 << (i % 8));
      const uint32_t version = present ? row->second.version : 0;
      if (query.with_versions()) {
        values.mutable_versions()->append(reinterpret_cast<const char*>(&version), sizeof(version));
      }
    }
    const Codec& codec = **FindCodec(encoding);
    values.set_table_id(query.table_id());
    values.set_rows(ids->size());
    values.set_encoding(codec.encoding());
    values.mutable_payload()->resize(codec.EncodedBytes(all.size()));
    codec.Encode(all, 0, values.mutable_payload()->data());
    values.set_clock(pushes_.size() + pulls_.size());
    pulls_.push_back({*ids, {}, {}, encoding});
    return true;
  }

  const std::vector<Batch>& pushes() const { return pushes_; }
  const std::vector<Batch>& pulls() const { return pulls_; }

 private:
  static std::optional<std::vector<uint64_t>> ReadIds(uint32_t table_id, const std::string& bytes) {
    std::vector<uint64_t> ids(bytes.size() / sizeof(uint64_t));
    std::memcpy(ids.data(), bytes.data(), ids.size() * sizeof(uint64_t));
    for (size_t i = 1; i < ids.size(); ++i) {
      if (RowHash(ids[i - 1], table_id) >= RowHash(ids[i], table_id)) return std::nullopt;
    }
    return bytes.size() % sizeof(uint64_t) == 0 ? std::optional(ids) : std::nullopt;
  }

  std::optional<Batch> Read(const v1::RowGradients& gradients) const {
    const auto dim = dims_.find(gradients.table_id());
    const std::optional<std::vector<uint64_t>> ids = ReadIds(gradients.table_id(), gradients.ids());
    if (dim == dims_.end() || !ids.has_value()) return std::nullopt;
    Batch batch{*ids, std::vector<float>(ids->size() * dim->second), {}, gradients.encoding()};
    batch.versions.resize(gradients.versions().size() / sizeof(uint32_t));
    if (!batch.versions.empty()) {
      std::memcpy(batch.versions.data(), gradients.versions().data(), batch.versions.size() * sizeof(uint32_t));
    }
    if (!batch.versions.empty() && batch.versions.size() != ids->size()) return std::nullopt;
    const absl::string_view payload(gradients.payload());
    const absl::StatusOr<const Codec*> codec = FindCodec(gradients.encoding());
    if (!codec.ok() || !(*codec)->Decode({&payload, 1}, absl::MakeSpan(batch.gradients)).ok()) return std::nullopt;
    return batch;
  }

  std::map<uint32_t, uint32_t> dims_;
  std::map<uint32_t, std::map<uint64_t, Row>> tables_;
  std::vector<Batch> pushes_;
  std::vector<Batch> pulls_;
};

}  // namespace ballast
