// SPDX-License-Identifier: Apache-2.0
// LIBSVM files, plain and compressed: bytes of choices and the number of features, then the file.
#include "tests/fuzz/dataset_fuzz.h"

namespace ballast {

std::vector<std::string> FuzzSeeds() {
  const std::string text = "1 1:0.5 3:-2 # a comment\n0\n-1 2:1e-3 4:7\r\n\n2 1:1 2:2 3:3 4:4";
  const auto seed = [](char wrapping, char zero_based, char features, const std::string& rest) {
    return std::string({wrapping, zero_based, features, 0, 0, 0, 0, 0}) + rest;
  };
  return {seed(0, 0, 4, text), seed(2, 0, 5, text), seed(0, 1, 5, "1 0:1 4:2\n0 1:1\n"),
          seed(1, 0, 4, GzipForFuzzing(text))};
}

void FuzzOne(FuzzInput input) {
  static DataFile file(".libsvm");
  const Wrapping wrapping = WrappingOf(input.Byte());
  v1::DataSource source;
  source.mutable_libsvm()->set_zero_based(input.Byte() % 2 == 1);
  source.mutable_libsvm()->set_features(static_cast<int64_t>(input.Number(6)));
  source.mutable_libsvm()->set_path(file.Put(input.Rest(), wrapping));
  OpenAndRead(source);
}

}  // namespace ballast
