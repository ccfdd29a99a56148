// SPDX-License-Identifier: Apache-2.0
#include "client/slice_codec.h"

#include <bit>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace ballast {
namespace {

static_assert(std::endian::native == std::endian::little, "payloads are copied as they lie in memory");

absl::Status CheckValue(const v1::SliceValue& got, const SliceTransfer& want) {
  if (got.tensor_id() != want.tensor_id || got.slice_index() != want.slice_index) {
    return absl::InternalError(absl::StrCat("answer holds tensor ", got.tensor_id(), " slice ", got.slice_index(),
                                            ", want tensor ", want.tensor_id, " slice ", want.slice_index));
  }
  if (got.encoding() != v1::ENCODING_FP32 && got.encoding() != v1::ENCODING_UNSPECIFIED) {
    return absl::InternalError(absl::StrCat("answer's tensor ", want.tensor_id, " slice ", want.slice_index,
                                            " has encoding ", static_cast<int>(got.encoding()), ", want fp32"));
  }
  if (got.payload().size() != want.elements * sizeof(float) || want.values.size() != want.elements) {
    return absl::InternalError(absl::StrCat("answer's tensor ", want.tensor_id, " slice ", want.slice_index, " has ",
                                            got.payload().size(), " bytes, want ", want.elements * sizeof(float)));
  }
  return absl::OkStatus();
}

}  // namespace

google::protobuf::RepeatedPtrField<v1::SliceGradient> EncodeGradients(absl::Span<const SliceTransfer> slices) {
  google::protobuf::RepeatedPtrField<v1::SliceGradient> gradients;
  gradients.Reserve(slices.size());
  for (const SliceTransfer& slice : slices) {
    v1::SliceGradient* gradient = gradients.Add();
    gradient->set_tensor_id(slice.tensor_id);
    gradient->set_slice_index(slice.slice_index);
    gradient->set_version(slice.version);
    gradient->set_encoding(v1::ENCODING_FP32);
    gradient->set_payload(slice.gradient.data(), slice.gradient.size() * sizeof(float));
  }
  return gradients;
}

google::protobuf::RepeatedPtrField<v1::SliceRef> EncodeRefs(absl::Span<const SliceTransfer> slices) {
  google::protobuf::RepeatedPtrField<v1::SliceRef> refs;
  refs.Reserve(slices.size());
  for (const SliceTransfer& slice : slices) {
    v1::SliceRef* ref = refs.Add();
    ref->set_tensor_id(slice.tensor_id);
    ref->set_slice_index(slice.slice_index);
  }
  return refs;
}

absl::StatusOr<std::vector<uint64_t>> DecodeValues(const google::protobuf::RepeatedPtrField<v1::SliceValue>& answer,
                                                   absl::Span<const SliceTransfer> slices) {
  if (static_cast<size_t>(answer.size()) != slices.size()) {
    return absl::InternalError(absl::StrCat("answer holds ", answer.size(), " slices, want ", slices.size()));
  }
  for (size_t i = 0; i < slices.size(); ++i) {
    if (absl::Status status = CheckValue(answer[i], slices[i]); !status.ok()) return status;
  }
  std::vector<uint64_t> versions;
  versions.reserve(slices.size());
  for (size_t i = 0; i < slices.size(); ++i) {
    std::memcpy(slices[i].values.data(), answer[i].payload().data(), answer[i].payload().size());
    versions.push_back(answer[i].version());
  }
  return versions;
}

}  // namespace ballast
