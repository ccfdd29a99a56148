// SPDX-License-Identifier: Apache-2.0
// Safetensors files are refused, or give tensors whose shapes fit their values, in memory that the file's size
// justifies.
#include "common/run/model_description.h"
#include "common/run/safetensors.h"
#include "tests/fuzz/fuzz_files.h"
#include "tests/fuzz/fuzz_target.h"

namespace ballast {
namespace {

std::string Seed(const std::string& header, const std::string& values) {
  std::string length(8, '\0');
  length[0] = static_cast<char>(header.size());
  length[1] = static_cast<char>(header.size() >> 8);
  return length + header + values;
}

}  // namespace

std::vector<std::string> FuzzSeeds() {
  return {Seed(R"({"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
               R"("b":{"dtype":"F32","shape":[],"data_offsets":[16,20]},"__metadata__":{"job":"x","step":"7"}}  )",
               std::string(20, '\x3f')),
          Seed(R"({"__metadata__":{"features":"2","model":"{\"layers\":[{\"dense\":{\"units\":\"1\"}}],\"loss\":)"
               R"({\"mean_squared_error\":{}}}","source":"{\"csv\":{}}","normalization":"{\"mean\":1}"}})",
               ""),
          Seed(R"({"none":{"dtype":"F32","shape":[0,9],"data_offsets":[0,0]}})", ""), Seed("{}", ""),
          Seed(R"({"h":{"dtype":"F16","shape":[2],"data_offsets":[0,4]}})", "abcd")};
}

void FuzzOne(FuzzInput input) {
  static InputFile file(".safetensors");
  file.Put(input.Rest());
  const absl::StatusOr<Safetensors> read = ReadSafetensors(file.path());
  if (!read.ok()) return;
  // Refused, or a description; it allocates nothing for the model.
  ParseMetadata(read->metadata).IgnoreError();
  size_t bytes = 0;
  for (const LoadedTensor& tensor : read->tensors) {
    int64_t elements = 1;
    for (int64_t dimension : tensor.shape) elements *= dimension;
    Require(elements == static_cast<int64_t>(tensor.values.size()), "a shape fits its values");
    bytes += sizeof(float) * tensor.values.size();
  }
  Require(bytes <= input.Rest().size(), "values take at most the size of the file");
}

}  // namespace ballast
