// SPDX-License-Identifier: Apache-2.0
// LIBFFM files, plain and compressed: bytes of choices and the number of fields, then the file.
#include "tests/fuzz/dataset_fuzz.h"

namespace ballast {

std::vector<std::string> FuzzSeeds() {
  const std::string text = "1 0:5:1 2:18446744073709551615:1.0\n0\n-1 2:7:1 0:5:1 2:7:1\r\n\n1 1:1:1";
  const auto seed = [](char wrapping, char one_based, char fields, const std::string& rest) {
    return std::string({wrapping, one_based, fields, 0, 0}) + rest;
  };
  return {seed(0, 0, 3, text), seed(2, 0, 4, text), seed(0, 1, 2, "1 1:0:1 2:4:1\n0 1:1:1\n"),
          seed(1, 0, 3, GzipForFuzzing(text))};
}

void FuzzOne(FuzzInput input) {
  static DataFile file(".ffm");
  const Wrapping wrapping = WrappingOf(input.Byte());
  v1::DataSource source;
  source.mutable_libffm()->set_one_based(input.Byte() % 2 == 1);
  source.mutable_libffm()->set_fields(static_cast<uint32_t>(input.Number(3)));
  source.mutable_libffm()->set_path(file.Put(input.Rest(), wrapping));
  OpenAndRead(source);
}

}  // namespace ballast
