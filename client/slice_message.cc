// SPDX-License-Identifier: Apache-2.0
#include "client/slice_message.h"

#include <bit>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace ballast {
namespace {

static_assert(std::endian::native == std::endian::little, "payloads are used as they lie in memory");

size_t BytesIn(const Pieces& pieces) {
  size_t bytes = 0;
  for (absl::string_view piece : pieces) bytes += piece.size();
  return bytes;
}

absl::Status CheckValue(const ItemWithPayload<v1::SliceValue>& got, const SliceTransfer& want) {
  if (got.item.tensor_id() != want.tensor_id || got.item.slice_index() != want.slice_index) {
    return absl::InternalError(absl::StrCat("answer holds tensor ", got.item.tensor_id(), " slice ",
                                            got.item.slice_index(), ", want tensor ", want.tensor_id, " slice ",
                                            want.slice_index));
  }
  if (got.item.encoding() != v1::ENCODING_FP32 && got.item.encoding() != v1::ENCODING_UNSPECIFIED) {
    return absl::InternalError(absl::StrCat("answer's tensor ", want.tensor_id, " slice ", want.slice_index,
                                            " has encoding ", static_cast<int>(got.item.encoding()), ", want fp32"));
  }
  const size_t bytes = BytesIn(got.payload);
  if (bytes != want.elements * sizeof(float) || want.values.size() != want.elements) {
    return absl::InternalError(absl::StrCat("answer's tensor ", want.tensor_id, " slice ", want.slice_index, " has ",
                                            bytes, " bytes, want ", want.elements * sizeof(float)));
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<GradientPayload> LendGradients(absl::Span<const SliceTransfer> slices, MemoryHold& hold) {
  std::vector<GradientPayload> payloads;
  payloads.reserve(slices.size());
  for (const SliceTransfer& slice : slices) {
    payloads.push_back({v1::ENCODING_FP32, hold.Lend(slice.gradient.data(), slice.gradient.size() * sizeof(float))});
  }
  return payloads;
}

void AddRefs(absl::Span<const SliceTransfer> slices, v1::PullRequest* request) {
  for (const SliceTransfer& slice : slices) {
    v1::SliceRef* ref = request->add_slices();
    ref->set_tensor_id(slice.tensor_id);
    ref->set_slice_index(slice.slice_index);
  }
}

absl::StatusOr<std::vector<uint64_t>> DecodeValues(absl::Span<const ItemWithPayload<v1::SliceValue>> answer,
                                                   absl::Span<const SliceTransfer> slices) {
  if (answer.size() != slices.size()) {
    return absl::InternalError(absl::StrCat("answer holds ", answer.size(), " slices, want ", slices.size()));
  }
  for (size_t i = 0; i < slices.size(); ++i) {
    if (absl::Status status = CheckValue(answer[i], slices[i]); !status.ok()) return status;
  }
  std::vector<uint64_t> versions;
  versions.reserve(slices.size());
  for (size_t i = 0; i < slices.size(); ++i) {
    char* to = reinterpret_cast<char*>(slices[i].values.data());
    for (absl::string_view piece : answer[i].payload) {
      std::memcpy(to, piece.data(), piece.size());
      to += piece.size();
    }
    versions.push_back(answer[i].item.version());
  }
  return versions;
}

}  // namespace ballast
