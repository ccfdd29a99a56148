// SPDX-License-Identifier: Apache-2.0
#include "worker/data/files/text_rows.h"

#include "worker/data/datasets/test_files.h"

namespace ballast {
namespace {

// Runs each test on a plain file and on a compressed one.
class TextRowsTest : public testing::TestWithParam<bool> {
 protected:
  std::string Write(const std::string& content) const {
    return GetParam() ? WriteFile("a.txt.gz", Gzip(content)) : WriteFile("a.txt", content);
  }
};

absl::StatusOr<bool> EveryLine(absl::string_view, uint64_t) { return true; }

TEST_P(TextRowsTest, FindsLinesWithAndWithoutReturnAndLastNewline) {
  const absl::StatusOr<TextRows> rows = TextRows::Open(Write("one\ntwo\r\n\nfour"), EveryLine);
  ASSERT_TRUE(rows.ok()) << rows.status();
  ASSERT_EQ(rows->size(), 4);
  EXPECT_EQ(rows->Row(3), "four");
  EXPECT_EQ(rows->Row(2), "");
  EXPECT_EQ(rows->Row(1), "two");
  EXPECT_EQ(rows->Row(0), "one");
}

TEST_P(TextRowsTest, LeavesOutWhatIsNoRow) {
  std::vector<uint64_t> numbers;
  const auto check = [&](absl::string_view line, uint64_t number) -> absl::StatusOr<bool> {
    numbers.push_back(number);
    return line != "skip";
  };
  const absl::StatusOr<TextRows> rows = TextRows::Open(Write("skip\na\nskip\nb\n"), check);
  ASSERT_TRUE(rows.ok()) << rows.status();
  ASSERT_EQ(rows->size(), 2);
  EXPECT_EQ(rows->Row(0), "a");
  EXPECT_EQ(rows->Row(1), "b");
  EXPECT_EQ(numbers, (std::vector<uint64_t>{1, 2, 3, 4}));
}

TEST_P(TextRowsTest, NamesTheLineOfAnError) {
  const auto check = [](absl::string_view line, uint64_t) -> absl::StatusOr<bool> {
    if (line == "bad") return absl::InvalidArgumentError("is bad");
    return true;
  };
  const std::string path = Write("good\ngood\nbad\ngood\n");
  EXPECT_EQ(TextRows::Open(path, check).status(), absl::InvalidArgumentError(path + ":3: is bad"));
}

TEST_P(TextRowsTest, RefusesAFileWithoutRows) {
  const std::string path = Write("");
  EXPECT_EQ(TextRows::Open(path, EveryLine).status(),
            absl::InvalidArgumentError(path + ": empty data set: no line has a row"));
}

TEST_P(TextRowsTest, TakesFilesOfManyChunks) {
  std::string content;
  for (int i = 0; i < 400000; ++i) content += std::to_string(i) + "\n";
  const absl::StatusOr<TextRows> rows = TextRows::Open(Write(content), EveryLine);
  ASSERT_TRUE(rows.ok()) << rows.status();
  ASSERT_EQ(rows->size(), 400000);
  for (int i = 0; i < 400000; ++i) ASSERT_EQ(rows->Row(i), std::to_string(i));
}

TEST_P(TextRowsTest, RefusesALineWithoutEnd) {
  const std::string path = Write("a\n" + std::string(70 << 20, '0'));
  EXPECT_EQ(TextRows::Open(path, EveryLine).status(),
            absl::InvalidArgumentError(path + ":2: line is longer than 67108864 bytes"));
}

INSTANTIATE_TEST_SUITE_P(PlainAndCompressed, TextRowsTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "Gzip" : "Plain"; });

TEST(TextRowsFileTest, NamesAMissingFile) {
  EXPECT_EQ(TextRows::Open("no/such.csv", EveryLine).status(),
            absl::NotFoundError("no/such.csv: No such file or directory"));
}

}  // namespace
}  // namespace ballast
