// SPDX-License-Identifier: Apache-2.0
// CSV files, plain and compressed: bytes of choices, then the file.
#include "tests/fuzz/dataset_fuzz.h"

namespace ballast {

std::vector<std::string> FuzzSeeds() {
  const std::string text = "1,2.5,-3e2,0\n4,+5,6,1\r\n\n7,8,.9,2";
  const auto seed = [](char wrapping, char label, char choices, const std::string& rest) {
    return std::string({wrapping, label, choices, ','}) + rest;
  };
  return {seed(0, -1, 0, text),
          seed(2, 0, 0, text),
          seed(0, 1, 1, "a,b,c,d\n" + text),
          seed(1, -1, 0, GzipForFuzzing(text) + GzipForFuzzing("1,2,3,4\n")),
          seed(0, 0, static_cast<char>(0xc0), "1,2.5,a|b,b|c\n0,3,NA,\"c|\"\n"),
          seed(0, 0, 0x27, "k,c,x,y\nA,\"p, \"\"q\"\"\",1,NA\nB,\"r\n\",2,\nA,?,4,5\n")};
}

void FuzzOne(FuzzInput input) {
  static DataFile file(".csv");
  const Wrapping wrapping = WrappingOf(input.Byte());
  v1::DataSource source;
  v1::Csv& csv = *source.mutable_csv();
  csv.set_label_column(static_cast<int8_t>(input.Byte()));
  const uint8_t choices = input.Byte();
  csv.set_header(choices & 1);
  csv.set_text_labels(choices & 2);
  if (choices & 4) csv.add_categories("1");
  if (choices & 64) csv.add_hashed("2");
  if (choices & 128) csv.add_looked_up("3");
  if (choices & 128) csv.set_id_separator("|");
  csv.set_missing(static_cast<v1::MissingValues>((choices >> 3) % 3));
  DatasetOptions options;
  options.normalization.set_per_column(choices & 32);
  csv.set_delimiter(std::string(1, static_cast<char>(input.Byte() & 0x7f)));
  csv.set_path(file.Put(input.Rest(), wrapping));
  OpenAndRead(source, options);
}

}  // namespace ballast
