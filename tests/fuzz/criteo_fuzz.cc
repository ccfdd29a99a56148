// SPDX-License-Identifier: Apache-2.0
// Files in Criteo's format, plain and compressed: a byte of choices, then the file.
#include "tests/fuzz/dataset_fuzz.h"

namespace ballast {

std::vector<std::string> FuzzSeeds() {
  const std::string text = "1\t0\t-3\t9223372036854775807" + std::string(10, '\t') + "\t0000000a\tFFFFFFFFFFFFFFFF" +
                           std::string(24, '\t') + "\r\n\n0" + std::string(39, '\t');
  const auto seed = [](char wrapping, const std::string& rest) { return std::string(1, wrapping) + rest; };
  return {seed(0, text), seed(2, text), seed(1, GzipForFuzzing(text))};
}

void FuzzOne(FuzzInput input) {
  static DataFile file(".tsv");
  const Wrapping wrapping = WrappingOf(input.Byte());
  v1::DataSource source;
  source.mutable_criteo()->set_path(file.Put(input.Rest(), wrapping));
  OpenAndRead(source);
}

}  // namespace ballast
