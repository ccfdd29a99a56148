// SPDX-License-Identifier: Apache-2.0
#include "common/tensors/shard_map.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status/error_reason.h"
#include "common/tables/table_spec.h"
#include "common/tensors/declarations.h"
#include "common/tensors/tensor_spec.h"

namespace ballast {
namespace {

// Limit on the encoded size, so that one message can carry the map.
constexpr uint64_t kMaxMapBytes = 4 << 20;
// Upper limits per slice or span, and per tensor or table without its slices or spans and its spec.
constexpr uint64_t kSliceBytes = 32;
constexpr uint64_t kTensorBytes = 16;

uint64_t BoundBytes(const v1::TensorSpec& spec) {
  return spec.ByteSizeLong() + kTensorBytes + CountSlices(spec) * kSliceBytes;
}
uint64_t BoundBytes(const PlacedTable& table) {
  return table.spec.ByteSizeLong() + kTensorBytes + table.spans.size() * kSliceBytes;
}

absl::Status CheckCover(const PlacedTensor& tensor, size_t shards) {
  uint64_t next = 0;
  for (size_t i = 0; i < tensor.slices.size(); ++i) {
    const PlacedSlice& slice = tensor.slices[i];
    if (slice.index != i || slice.offset != next || slice.elements == 0 || slice.elements > kMaxSliceElements) {
      return absl::InvalidArgumentError(absl::StrCat("shard map: tensor \"", tensor.spec.name(), "\": slice ", i,
                                                     " does not start where the previous one ends"));
    }
    if (slice.shard >= shards) {
      return absl::InvalidArgumentError(absl::StrCat("shard map: tensor \"", tensor.spec.name(), "\": slice ", i,
                                                     " is on shard ", slice.shard, " of ", shards));
    }
    next += slice.elements;
  }
  if (next == CountElements(tensor.spec)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("shard map: slices of tensor \"", tensor.spec.name(), "\" hold ", next,
                                                 " elements, want ", CountElements(tensor.spec)));
}

// Refuses what makes the map's encoding too large.
absl::Status CheckBytes(absl::string_view kind, const std::string& name, uint64_t bytes) {
  if (bytes <= kMaxMapBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("shard map: ", kind, " \"", name, "\" makes it ", bytes,
                                                 " bytes, want at most ", kMaxMapBytes,
                                                 ": the job has too many tensors or elements"));
}

// `earlier`: the same tensor in a map that has been cut before; null: there is none.
PlacedTensor CutTensor(const v1::TensorSpec& spec, const PlacedTensor* earlier) {
  PlacedTensor tensor{spec, {}};
  if (earlier != nullptr && CountElements(earlier->spec) == CountElements(spec)) {
    tensor.slices = earlier->slices;
    return tensor;
  }
  for (const v1::SliceRange& range : CutIntoSlices(spec)) {
    tensor.slices.push_back({range.index(), range.offset(), range.elements(), 0});
  }
  return tensor;
}

// Gives each slice of `added` to the least loaded shard; `load` has each shard's elements.
void GiveOut(std::vector<PlacedTensor>& added, std::vector<uint64_t> load) {
  std::vector<PlacedSlice*> by_size;
  for (PlacedTensor& tensor : added) {
    for (PlacedSlice& slice : tensor.slices) by_size.push_back(&slice);
  }
  std::stable_sort(by_size.begin(), by_size.end(),
                   [](const PlacedSlice* a, const PlacedSlice* b) { return a->elements > b->elements; });
  for (PlacedSlice* slice : by_size) {
    slice->shard = std::min_element(load.begin(), load.end()) - load.begin();
    load[slice->shard] += slice->elements;
  }
}

template <typename Placed>
const Placed* FindById(const std::vector<Placed>& all, uint32_t id) {
  const auto found = std::find_if(all.begin(), all.end(), [&](const Placed& one) { return one.spec.id() == id; });
  return found == all.end() ? nullptr : &*found;
}

}  // namespace

absl::StatusOr<ShardMap> ShardMap::FromProto(const v1::ShardMap& proto) {
  if (proto.control_shards_size() > proto.shards_size()) {
    return absl::InvalidArgumentError(absl::StrCat("shard map: got ", proto.control_shards_size(),
                                                   " control addresses of ", proto.shards_size(), " shards"));
  }
  ShardMap map({proto.shards().begin(), proto.shards().end()},
               {proto.control_shards().begin(), proto.control_shards().end()});
  map.epoch_ = proto.epoch();
  for (const v1::ShardMap::Tensor& from : proto.tensors()) {
    PlacedTensor tensor;
    tensor.spec = from.spec();
    if (absl::Status status = ValidateTensorSpec(tensor.spec); !status.ok()) return status;
    for (const v1::ShardMap::Slice& slice : from.slices()) {
      tensor.slices.push_back({slice.range().index(), slice.range().offset(), slice.range().elements(), slice.shard()});
    }
    if (absl::Status status = CheckCover(tensor, map.shards_.size()); !status.ok()) return status;
    map.tensors_.push_back(std::move(tensor));
  }
  for (const v1::PlacedTable& from : proto.tables()) {
    absl::StatusOr<PlacedTable> table = ReadPlacedTable(from, map.shards_.size());
    if (!table.ok()) return table.status();
    map.tables_.push_back(*std::move(table));
  }
  return map;
}

v1::ShardMap ShardMap::ToProto() const {
  v1::ShardMap proto;
  proto.set_epoch(epoch_);
  for (const std::string& address : shards_) proto.add_shards(address);
  if (std::any_of(controls_.begin(), controls_.end(), [](const std::string& one) { return !one.empty(); })) {
    for (const std::string& address : controls_) proto.add_control_shards(address);
  }
  for (const PlacedTensor& tensor : tensors_) {
    v1::ShardMap::Tensor* to = proto.add_tensors();
    *to->mutable_spec() = tensor.spec;
    for (const PlacedSlice& slice : tensor.slices) {
      v1::ShardMap::Slice* placed = to->add_slices();
      placed->mutable_range()->set_index(slice.index);
      placed->mutable_range()->set_offset(slice.offset);
      placed->mutable_range()->set_elements(slice.elements);
      placed->set_shard(slice.shard);
    }
  }
  for (const PlacedTable& table : tables_) *proto.add_tables() = ballast::ToProto(table);
  return proto;
}

absl::Status ShardMap::Place(absl::Span<const v1::TensorSpec> specs, absl::Span<const v1::TableSpec> tables,
                             const ShardMap* earlier) {
  if (shards_.empty())
    return WithReason(v1::ERROR_REASON_SERVERS_MISSING,
                      absl::FailedPreconditionError("shard map: no shard to place tensors on"));
  uint64_t bytes = 0;
  Declarations declared;
  for (const PlacedTensor& tensor : tensors_) {
    bytes += BoundBytes(tensor.spec);
    if (const auto fresh = declared.Add(tensor.spec); !fresh.ok()) return fresh.status();
  }
  for (const PlacedTable& table : tables_) {
    bytes += BoundBytes(table);
    if (const auto fresh = declared.Add(table.spec); !fresh.ok()) return fresh.status();
  }
  std::vector<PlacedTensor> added;
  for (const v1::TensorSpec& spec : specs) {
    if (absl::Status status = ValidateTensorSpec(spec); !status.ok()) return status;
    const absl::StatusOr<bool> is_new = declared.Add(spec);
    if (!is_new.ok()) return is_new.status();
    if (!*is_new) continue;
    if (absl::Status status = CheckBytes("tensor", spec.name(), bytes += BoundBytes(spec)); !status.ok()) return status;
    added.push_back(CutTensor(spec, earlier != nullptr ? earlier->Find(spec.id()) : nullptr));
  }
  std::vector<PlacedTable> added_tables;
  for (const v1::TableSpec& spec : tables) {
    if (absl::Status status = ValidateTableSpec(spec); !status.ok()) return status;
    const absl::StatusOr<bool> is_new = declared.Add(spec);
    if (!is_new.ok()) return is_new.status();
    if (!*is_new) continue;
    added_tables.push_back(SpreadRanges(spec, shards_.size()));
    if (absl::Status status = CheckBytes("table", spec.name(), bytes += BoundBytes(added_tables.back())); !status.ok())
      return status;
  }
  if (added.empty() && added_tables.empty()) return absl::OkStatus();
  std::vector<uint64_t> load(shards_.size(), 0);
  for (const PlacedTensor& tensor : tensors_) {
    for (const PlacedSlice& slice : tensor.slices) load[slice.shard] += slice.elements;
  }
  GiveOut(added, std::move(load));
  std::move(added.begin(), added.end(), std::back_inserter(tensors_));
  std::move(added_tables.begin(), added_tables.end(), std::back_inserter(tables_));
  ++epoch_;
  return absl::OkStatus();
}

void ShardMap::Move(uint32_t shard, std::string address, std::string control_address) {
  shards_[shard] = std::move(address);
  controls_[shard] = std::move(control_address);
  ++epoch_;
}

const PlacedTensor* ShardMap::Find(uint32_t tensor_id) const { return FindById(tensors_, tensor_id); }

const PlacedTable* ShardMap::FindTable(uint32_t table_id) const { return FindById(tables_, table_id); }

}  // namespace ballast
