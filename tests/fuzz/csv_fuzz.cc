// SPDX-License-Identifier: Apache-2.0
// CSV files, plain and compressed: bytes of choices, then the file.
#include "tests/fuzz/dataset_fuzz.h"

namespace ballast {

std::vector<std::string> FuzzSeeds() {
  const std::string text = "1,2.5,-3e2,0\n4,+5,6,1\r\n\n7,8,.9,2";
  const auto seed = [](char wrapping, char label, char header, const std::string& rest) {
    return std::string({wrapping, label, header, ','}) + rest;
  };
  return {seed(0, -1, 0, text), seed(2, 0, 0, text), seed(0, 1, 1, "a,b,c,d\n" + text),
          seed(1, -1, 0, GzipForFuzzing(text) + GzipForFuzzing("1,2,3,4\n"))};
}

void FuzzOne(FuzzInput input) {
  static DataFile file(".csv");
  const Wrapping wrapping = WrappingOf(input.Byte());
  v1::DataSource source;
  v1::Csv& csv = *source.mutable_csv();
  csv.set_label_column(static_cast<int8_t>(input.Byte()));
  csv.set_header(input.Byte() % 2 == 1);
  csv.set_delimiter(std::string(1, static_cast<char>(input.Byte() & 0x7f)));
  csv.set_path(file.Put(input.Rest(), wrapping));
  OpenAndRead(source);
}

}  // namespace ballast
