// SPDX-License-Identifier: Apache-2.0
#include "worker/data/files/data_file.h"

#include "worker/data/datasets/test_files.h"

namespace ballast {
namespace {

// Reads a whole file, `piece` bytes at a time.
absl::StatusOr<std::string> Decompress(const std::string& path, size_t piece = 100) {
  absl::StatusOr<std::unique_ptr<GzipReader>> reader = GzipReader::Open(path);
  if (!reader.ok()) return reader.status();
  std::string all;
  while (true) {
    std::vector<uint8_t> buffer(piece);
    absl::StatusOr<size_t> got = (*reader)->Read(absl::MakeSpan(buffer));
    if (!got.ok()) return got.status();
    all.append(buffer.begin(), buffer.begin() + *got);
    if (*got < piece) return all;
  }
}

// Returns bytes that are hard to compress.
std::string Noise(size_t size) {
  std::string noise;
  uint32_t state = 1;
  while (noise.size() < size) noise += static_cast<char>((state = state * 1664525 + 1013904223) >> 24);
  return noise;
}

TEST(GzipReaderTest, DecompressesInPiecesOfAnySize) {
  const std::string content = Noise(300000) + std::string(500000, 'x');
  const std::string path = WriteFile("a.gz", Gzip(content));
  for (const size_t piece : {777, 1 << 16, 800000, 1 << 20}) {
    const absl::StatusOr<std::string> got = Decompress(path, piece);
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_TRUE(*got == content) << piece;
  }
}

TEST(GzipReaderTest, ReadsMembersOneAfterTheOther) {
  const std::string path = WriteFile("a.gz", Gzip("first ") + Gzip("") + Gzip("second"));
  EXPECT_EQ(*Decompress(path), "first second");
}

TEST(GzipReaderTest, NamesAMissingFile) {
  EXPECT_EQ(Decompress("no/such.gz").status(), absl::NotFoundError("no/such.gz: No such file or directory"));
}

TEST(GzipReaderTest, RefusesAFolder) {
  EXPECT_EQ(Decompress("/").status(), absl::InvalidArgumentError("/: not a regular file"));
}

TEST(GzipReaderTest, RefusesWhatIsNoGzip) {
  const std::string path = WriteFile("a.gz", "label,x\n1,2\n");
  EXPECT_EQ(Decompress(path).status(),
            absl::InvalidArgumentError(path + ": not a gzip file: incorrect header check at byte 0, want 1f 8b"));
}

TEST(GzipReaderTest, RefusesAnEmptyFile) {
  const std::string path = WriteFile("a.gz", "");
  EXPECT_EQ(Decompress(path).status(), absl::InvalidArgumentError(path + ": is empty, want gzip data"));
}

TEST(GzipReaderTest, DetectsTruncationAtEveryByte) {
  const std::string whole = Gzip("some text, some text, some other text");
  for (size_t size = 1; size < whole.size(); ++size) {
    const std::string path = WriteFile("a.gz", whole.substr(0, size));
    EXPECT_EQ(Decompress(path).status(), absl::DataLossError(absl::StrCat(path, ": truncated: the file ends at byte ",
                                                                          size, " in the middle of its gzip data")));
  }
}

TEST(GzipReaderTest, DetectsDamage) {
  std::string damaged = Gzip(Noise(10000));
  damaged[damaged.size() - 6] ^= 1;
  EXPECT_EQ(Decompress(WriteFile("a.gz", damaged)).status().code(), absl::StatusCode::kDataLoss);
}

TEST(GzipReaderTest, DetectsGarbageAtTheEnd) {
  const std::string path = WriteFile("a.gz", Gzip("text") + "garbage");
  EXPECT_EQ(Decompress(path).status().code(), absl::StatusCode::kDataLoss);
}

TEST(GzipReaderTest, BoundsWhatAFileCanHold) {
  const std::string content(10000000, '\0');
  const std::string path = WriteFile("a.gz", Gzip(content));
  absl::StatusOr<std::unique_ptr<GzipReader>> reader = GzipReader::Open(path);
  ASSERT_TRUE(reader.ok());
  EXPECT_GE((*reader)->most_bytes(), 10000000);
  EXPECT_LT((*reader)->most_bytes(), 11000000);
}

}  // namespace
}  // namespace ballast
