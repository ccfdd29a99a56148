// SPDX-License-Identifier: Apache-2.0
#include "worker/data/datasets/test_files.h"

namespace ballast {
namespace {

using Floats = std::vector<float>;

std::string Bytes(const std::vector<int>& bytes) { return std::string(bytes.begin(), bytes.end()); }

// Encodes each word as 4 bytes, big-endian.
std::string Words(const std::vector<uint32_t>& words) {
  std::string out;
  for (const uint32_t word : words) {
    for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(word >> shift);
  }
  return out;
}

std::string Idx(int type, const std::vector<uint32_t>& dimensions, const std::string& payload) {
  return Bytes({0, 0, type, static_cast<int>(dimensions.size())}) + Words(dimensions) + payload;
}

// Two images of 1 x 3 pixels, labels 7 and 9.
std::string Images() { return Idx(8, {2, 1, 3}, Bytes({0, 1, 255, 10, 20, 30})); }
std::string Labels() { return Idx(8, {2}, Bytes({7, 9})); }

absl::StatusOr<std::unique_ptr<Dataset>> Open(const std::string& images, const std::string& labels,
                                              const v1::Normalization& normalization = {}) {
  v1::DataSource source;
  source.mutable_idx()->set_images(images);
  source.mutable_idx()->set_labels(labels);
  return OpenDataset(source, {.normalization = normalization});
}

void ExpectError(const absl::StatusOr<std::unique_ptr<Dataset>>& dataset, absl::StatusCode code,
                 const std::string& message) {
  EXPECT_EQ(dataset.status(), absl::Status(code, message));
}

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument, kLoss = absl::StatusCode::kDataLoss;

// Expects that images in a file of this content and name are refused; `message` follows the file's path.
void ExpectRefusal(const std::string& content, absl::StatusCode code, const std::string& message,
                   const std::string& name = "images") {
  const std::string images = WriteFile(name, content);
  ExpectError(Open(images, WriteFile("labels", Labels())), code, images + message);
}

TEST(IdxDatasetTest, ReadsImagesAndLabels) {
  const auto dataset = Open(WriteFile("images", Images()), WriteFile("labels", Labels()));
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->size(), 2);
  EXPECT_EQ((*dataset)->features(), 3);
  const Examples all = ReadAll(**dataset);
  EXPECT_EQ(all.features, (Floats{0, 1, 255, 10, 20, 30}));
  EXPECT_EQ(all.labels, (Floats{7, 9}));
}

TEST(IdxDatasetTest, ReadsEveryElementType) {
  const std::string labels = WriteFile("labels", Idx(12, {1}, Words({100000})));
  const auto read = [&](int type, const std::string& payload) {
    const auto dataset = Open(WriteFile("images", Idx(type, {1, 2}, payload)), labels);
    EXPECT_TRUE(dataset.ok()) << dataset.status();
    if (!dataset.ok()) return Floats();
    EXPECT_EQ(ReadAll(**dataset).labels, (Floats{100000}));
    return ReadAll(**dataset).features;
  };
  EXPECT_EQ(read(0x08, Bytes({200, 1})), (Floats{200, 1}));
  EXPECT_EQ(read(0x09, Bytes({200, 1})), (Floats{-56, 1}));
  EXPECT_EQ(read(0x0b, Bytes({0xff, 0xfe, 1, 2})), (Floats{-2, 258}));
  EXPECT_EQ(read(0x0c, Words({0xffffffff, 65536})), (Floats{-1, 65536}));
  EXPECT_EQ(read(0x0d, Words({0x3fc00000, 0xc0000000})), (Floats{1.5, -2}));
  EXPECT_EQ(read(0x0e, Words({0x3ff80000, 0, 0xc0000000, 0})), (Floats{1.5, -2}));
}

TEST(IdxDatasetTest, RefusesABadMagic) {
  const std::string labels = WriteFile("labels", Labels());
  const std::string want = ", want 00 00, a type 08, 09, 0b, 0c, 0d or 0e, a rank 01 to 08";
  for (const std::vector<int>& magic :
       {std::vector<int>{1, 0, 8, 1}, {0, 9, 8, 1}, {0, 0, 7, 1}, {0, 0, 10, 1}, {0, 0, 8, 0}, {0, 0, 8, 9}}) {
    const std::string images = WriteFile("images", Bytes(magic) + Words({1, 1}));
    const absl::Status status = Open(images, labels).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message().substr(0, images.size() + 25), images + ": bad IDX magic at byte 0");
  }
  ExpectRefusal("P5 28 28 255", kInvalid, ": bad IDX magic at byte 0: got 50 35 20 32" + want);
  ExpectRefusal(
      Gzip(Images()), kInvalid,
      ": bad IDX magic at byte 0: got 1f 8b 08 00" + want + "; this is gzip data, whose name must end in .gz");
}

TEST(IdxDatasetTest, RefusesATruncatedHeader) {
  ExpectRefusal(Bytes({0, 0}), kLoss, ": truncated: expected 4 bytes of IDX magic from byte 0, got 2");
  const std::string content = Images().substr(0, 13);
  const std::string message = ": truncated: expected 12 bytes of dimensions from byte 4, got 9";
  ExpectRefusal(content, kLoss, message);
  ExpectRefusal(Gzip(content), kLoss, message, "images.gz");
}

TEST(IdxDatasetTest, RefusesAFileOfAnotherLengthThanItsHeaderSays) {
  const std::string shorter = Images().substr(0, 20);
  ExpectRefusal(shorter, kLoss, ": expected 6 bytes from byte 16, got 4");
  ExpectRefusal(Images() + "x", kLoss, ": expected 6 bytes from byte 16, got 7");
  ExpectRefusal(Gzip(shorter), kLoss, ": expected 6 bytes from byte 16, got 4", "shorter.gz");
  const std::string longer = Images() + std::string(1 << 24, 'x');
  ExpectRefusal(Gzip(longer), kLoss, ": expected 6 bytes from byte 16, got more", "longer.gz");
}

TEST(IdxDatasetTest, RefusesATruncatedGzipFile) {
  const std::string whole = Gzip(Images());
  for (size_t size = 1; size < whole.size(); ++size) {
    ExpectRefusal(whole.substr(0, size), kLoss,
                  absl::StrCat(": truncated: the file ends at byte ", size, " in the middle of its gzip data"),
                  "images.gz");
  }
}

TEST(IdxDatasetTest, ChecksDimensionsBeforeItAllocates) {
  const std::string message = ": the dimensions claim more than 2^62 bytes at byte 8";
  ExpectRefusal(Idx(14, {4000000000, 4000000000, 4000000000}, ""), kInvalid, message);
  // The product of the dimensions wraps to 0 in 64 bits.
  ExpectRefusal(Idx(8, {1u << 31, 1u << 31, 1u << 2}, ""), kInvalid, message);
  const std::string bomb = Gzip(Idx(8, {1u << 20, 1u << 20}, "abc"));
  ExpectRefusal(bomb, kLoss,
                absl::StrCat(": expected 1099511627776 bytes from byte 12, got at most ", bomb.size() * 1032,
                             ", judging by the file's size"),
                "bomb.gz");
}

TEST(IdxDatasetTest, RefusesAnEmptyDataSet) {
  ExpectRefusal(Idx(8, {0, 28, 28}, ""), kInvalid, ": empty data set: dimension 0 at byte 4 is 0");
}

TEST(IdxDatasetTest, RefusesAnotherNumberOfLabels) {
  const std::string images = WriteFile("images", Images());
  const std::string labels = WriteFile("labels", Idx(8, {3}, Bytes({1, 2, 3})));
  ExpectError(Open(images, labels), kInvalid,
              labels + ": has 3 labels at byte 4, want 2, the number of examples in " + images);
}

TEST(IdxDatasetTest, RefusesImagesInPlaceOfLabels) {
  const std::string images = WriteFile("images", Images());
  ExpectError(Open(WriteFile("labels", Labels()), images), kInvalid,
              images + ": has rank 3 at byte 3, want 1 for labels; are images and labels swapped?");
}

TEST(IdxDatasetTest, RefusesNumbersThatAreNotFinite) {
  ExpectRefusal(Idx(0x0d, {1, 2}, Words({0, 0x7fc00000})), kInvalid, ": the number at byte 16 is not finite");
  // 1e300 is finite as float64, but not as float32.
  const std::string big = Idx(0x0e, {1, 1}, Words({0x7e37e43c, 0x8800759c}));
  ExpectRefusal(big, kInvalid, ": the number at byte 12 is not finite");
}

TEST(IdxDatasetTest, NamesAMissingFile) {
  ExpectError(Open("no/images", "no/labels"), absl::StatusCode::kNotFound, "no/images: No such file or directory");
  ExpectError(Open(WriteFile("images", Images()), "no/labels.gz"), absl::StatusCode::kNotFound,
              "no/labels.gz: No such file or directory");
}

TEST(IdxDatasetTest, KnowsWhereItsExtremeLabelsAre) {
  const std::string path = WriteFile("labels", Labels());
  const auto dataset = Open(WriteFile("images", Images()), path);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ(ExtremeLabels(**dataset),
            (std::vector<std::string>{"7 at " + path + ": byte 8", "9 at " + path + ": byte 9"}));
}

}  // namespace
}  // namespace ballast
