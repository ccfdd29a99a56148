// SPDX-License-Identifier: Apache-2.0
#include "common/tensors/shard_map.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/job/limits.h"
#include "common/status/error_reason.h"
#include "common/tensors/tensor_spec.h"
#include "google/protobuf/util/message_differencer.h"

namespace ballast {
namespace {

// Limit on the encoded size, so that one message can carry the map.
constexpr uint64_t kMaxMapBytes = 4 << 20;
// Upper limits per slice, and per tensor without its slices and its spec.
constexpr uint64_t kSliceBytes = 32;
constexpr uint64_t kTensorBytes = 16;

uint64_t BoundBytes(const v1::TensorSpec& spec) {
  const uint64_t slices = (CountElements(spec) + kMaxSliceElements - 1) / kMaxSliceElements;
  return spec.ByteSizeLong() + kTensorBytes + slices * kSliceBytes;
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

v1::TensorSpec Complete(v1::TensorSpec spec) {
  FillNumbers(spec);
  return spec;
}

}  // namespace

absl::Status CheckSameSpec(const v1::TensorSpec& declared, const v1::TensorSpec& again) {
  google::protobuf::util::MessageDifferencer differencer;
  std::string difference;
  differencer.ReportDifferencesToString(&difference);
  // A constant that one of them leaves out is the same as its default in the other.
  if (differencer.Compare(Complete(declared), Complete(again))) return absl::OkStatus();
  if (!difference.empty() && difference.back() == '\n') difference.pop_back();
  std::replace(difference.begin(), difference.end(), '\n', ';');
  return WithReason(v1::ERROR_REASON_TENSOR_DIFFERS,
                    absl::FailedPreconditionError(absl::StrCat("tensor ", again.id(), " \"", again.name(),
                                                               "\" was declared before as \"", declared.name(),
                                                               "\" and differs: ", difference)),
                    {{"tensor", again.name()}});
}

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
  return proto;
}

absl::Status ShardMap::Place(absl::Span<const v1::TensorSpec> specs) {
  if (shards_.empty())
    return WithReason(v1::ERROR_REASON_SERVERS_MISSING,
                      absl::FailedPreconditionError("shard map: no shard to place tensors on"));
  std::vector<PlacedTensor> added;
  uint64_t bytes = 0;
  absl::flat_hash_map<uint32_t, const v1::TensorSpec*> by_id;
  absl::flat_hash_map<absl::string_view, const v1::TensorSpec*> by_name;
  for (const PlacedTensor& tensor : tensors_) {
    bytes += BoundBytes(tensor.spec);
    by_id.emplace(tensor.spec.id(), &tensor.spec);
    by_name.emplace(tensor.spec.name(), &tensor.spec);
  }
  for (const v1::TensorSpec& spec : specs) {
    if (absl::Status status = ValidateTensorSpec(spec); !status.ok()) return status;
    const auto same_id = by_id.emplace(spec.id(), &spec);
    const auto same_name = by_name.emplace(spec.name(), &spec);
    if (!same_id.second || !same_name.second) {
      const v1::TensorSpec& known = !same_id.second ? *same_id.first->second : *same_name.first->second;
      if (absl::Status status = CheckSameSpec(known, spec); !status.ok()) return status;
      continue;
    }
    bytes += BoundBytes(spec);
    if (bytes > kMaxMapBytes) {
      return absl::InvalidArgumentError(absl::StrCat("shard map: tensor \"", spec.name(), "\" makes it ", bytes,
                                                     " bytes, want at most ", kMaxMapBytes,
                                                     ": the job has too many tensors or elements"));
    }
    PlacedTensor tensor{spec, {}};
    for (const v1::SliceRange& range : CutIntoSlices(CountElements(spec))) {
      tensor.slices.push_back({range.index(), range.offset(), range.elements(), 0});
    }
    added.push_back(std::move(tensor));
  }
  if (added.empty()) return absl::OkStatus();
  std::vector<uint64_t> load(shards_.size(), 0);
  for (const PlacedTensor& tensor : tensors_) {
    for (const PlacedSlice& slice : tensor.slices) load[slice.shard] += slice.elements;
  }
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
  std::move(added.begin(), added.end(), std::back_inserter(tensors_));
  ++epoch_;
  return absl::OkStatus();
}

void ShardMap::Move(uint32_t shard, std::string address, std::string control_address) {
  shards_[shard] = std::move(address);
  controls_[shard] = std::move(control_address);
  ++epoch_;
}

const PlacedTensor* ShardMap::Find(uint32_t tensor_id) const {
  auto found = std::find_if(tensors_.begin(), tensors_.end(),
                            [&](const PlacedTensor& tensor) { return tensor.spec.id() == tensor_id; });
  return found == tensors_.end() ? nullptr : &*found;
}

}  // namespace ballast
