// SPDX-License-Identifier: Apache-2.0
// IDX files of images and of labels, plain and compressed: two bytes of choices, two bytes of the first file's
// length, then both.
#include "tests/fuzz/dataset_fuzz.h"

namespace ballast {
namespace {

std::string Seed(char images_wrapping, char labels_wrapping, const std::string& images, const std::string& labels) {
  return std::string({images_wrapping, labels_wrapping, static_cast<char>(images.size()),
                      static_cast<char>(images.size() >> 8)}) +
         images + labels;
}

}  // namespace

std::vector<std::string> FuzzSeeds() {
  const std::string images = std::string("\0\0\x08\x03\0\0\0\3\0\0\0\x02\0\0\0\x02", 16) + "abcdefghijkl";
  const std::string labels = std::string("\0\0\x08\x01\0\0\0\3\0\1\2", 11);
  const std::string floats =
      std::string("\0\0\x0d\x02\0\0\0\3\0\0\0\1", 12) + std::string("\x3f\x80\0\0\0\0\0\0@\0\0\0", 12);
  return {Seed(0, 0, images, labels), Seed(2, 2, images, labels), Seed(0, 2, floats, labels),
          Seed(1, 1, GzipForFuzzing(images), GzipForFuzzing(labels))};
}

void FuzzOne(FuzzInput input) {
  static DataFile images(".images"), labels(".labels");
  const Wrapping of_images = WrappingOf(input.Byte()), of_labels = WrappingOf(input.Byte());
  const absl::string_view first = input.Take(input.Number(2));
  v1::DataSource source;
  source.mutable_idx()->set_images(images.Put(first, of_images));
  source.mutable_idx()->set_labels(labels.Put(input.Rest(), of_labels));
  OpenAndRead(source);
}

}  // namespace ballast
