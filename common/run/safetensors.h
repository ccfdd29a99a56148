// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

// The safetensors format (https://github.com/huggingface/safetensors): the header's length in 8 bytes,
// a JSON header padded with spaces, then the values, row-major, little-endian.
namespace ballast {

// A tensor to write; the caller owns the values.
struct TensorView {
  std::string name;
  // Empty for a scalar.
  std::vector<int64_t> shape;
  absl::Span<const float> values;
};

// A tensor of any element type to write; the caller owns the values.
struct EncodedTensorView {
  std::string name;
  // "F32", "BF16", "I64" or another of the format's names.
  std::string dtype;
  // Bytes of an element.
  uint64_t element_bytes = 0;
  std::vector<int64_t> shape;
  absl::string_view values;
};

// A tensor read from a file.
struct LoadedTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> values;
};

// A tensor of any element type read from a file.
struct LoadedEncodedTensor {
  std::string name;
  // "F32", "BF16" or "I64".
  std::string dtype;
  std::vector<int64_t> shape;
  // Little-endian.
  std::string values;
};

// Contents of a file; tensors are in the order of their values.
struct Safetensors {
  std::vector<LoadedTensor> tensors;
  std::map<std::string, std::string> metadata;
};

// Atomic: a reader sees the old file or the new one. INVALID_ARGUMENT if a shape does not fit its values, or a name
// is empty, reserved ("__metadata__"), not UTF-8 or not unique.
absl::Status WriteSafetensors(const std::string& path, absl::Span<const TensorView> tensors,
                              const std::map<std::string, std::string>& metadata);

// The same, for elements of any type, as bytes.
absl::Status WriteEncodedTensors(const std::string& path, absl::Span<const EncodedTensorView> tensors,
                                 const std::map<std::string, std::string>& metadata);

// Trusts nothing in the file: INVALID_ARGUMENT names the violation, UNIMPLEMENTED an element type that is not
// float32. Never allocates more than a few times the file's size.
absl::StatusOr<Safetensors> ReadSafetensors(const std::string& path);

// The same for the contents of a file with elements of the types F32, BF16 and I64. Ignores the metadata.
absl::StatusOr<std::vector<LoadedEncodedTensor>> DecodeEncodedTensors(absl::string_view file);

}  // namespace ballast
