// SPDX-License-Identifier: Apache-2.0
#include "worker/data/datasets/stream_reader.h"

#include <filesystem>
#include <memory>

#include "common/job/data_validation.h"
#include "worker/data/datasets/job_data.h"
#include "worker/data/datasets/test_files.h"

namespace ballast {
namespace {

using Floats = std::vector<float>;

void Append(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::app) << text;
}

class StreamReaderTest : public testing::Test {
 protected:
  // Opens a stream of LIBSVM rows whose only feature is a number.
  void OpenLibsvm(const std::string& path) {
    v1::Data data;
    data.mutable_train()->mutable_libsvm()->set_path(path);
    data.mutable_train()->mutable_libsvm()->set_features(1);
    data.mutable_stream();
    Open(data);
  }
  void OpenCsv(const std::string& path, const std::string& sample = "") {
    data_.mutable_train()->mutable_csv()->set_path(path);
    data_.mutable_train()->mutable_csv()->set_header(true);
    data_.mutable_train()->mutable_csv()->set_label("y");
    data_.mutable_stream()->set_sample(sample);
    Open(data_);
  }
  void Open(const v1::Data& data) {
    auto reader = StreamReader::Open(data, {.normalization = data.normalization()});
    ASSERT_TRUE(reader.ok()) << reader.status();
    reader_ = *std::move(reader);
  }

  // Finds rows, which must be there, and goes on behind them.
  Floats Next(uint64_t max_examples = 100) {
    const auto rows = reader_->Find(at_, max_examples);
    EXPECT_TRUE(rows.ok() && rows->has_value()) << rows.status();
    if (!rows.ok() || !rows->has_value()) return {};
    EXPECT_EQ((*rows)->span.examples, (*rows)->data->size());
    last_ = (*rows)->span;
    at_ = last_.end();
    return ReadAll(*(*rows)->data).features;
  }
  bool FindsNothing() {
    const auto rows = reader_->Find(at_, 100);
    EXPECT_TRUE(rows.ok()) << rows.status();
    return rows.ok() && !rows->has_value();
  }
  std::string Error() { return std::string(reader_->Find(at_, 100).status().message()); }

  // An empty directory that only the running test uses.
  static std::string Directory() {
    const std::string path = WriteFile("dir", "");
    std::filesystem::remove_all(path);
    std::filesystem::create_directories(path);
    return path;
  }

  v1::Data data_;
  std::unique_ptr<StreamReader> reader_;
  StreamPosition at_;
  StreamSpan last_;
};

TEST_F(StreamReaderTest, ReadsWhatIsAppendedToAFile) {
  const std::string path = WriteFile("a.libsvm", "");
  OpenLibsvm(path);
  EXPECT_EQ(reader_->TakePrototype()->features(), 1);
  EXPECT_TRUE(FindsNothing());
  Append(path, "0 1:1\n1 1:2\n0 1:3");
  EXPECT_EQ(Next(), Floats({1, 2})) << "the last line has no end yet";
  EXPECT_EQ(last_, (StreamSpan{{std::filesystem::path(path).filename(), 0, 0}, 12, 2, 2}));
  EXPECT_TRUE(FindsNothing());
  Append(path, "0\n");
  EXPECT_EQ(Next(), Floats({30}));
  EXPECT_TRUE(FindsNothing());
}

TEST_F(StreamReaderTest, ReturnsAsManyRowsAsAreWanted) {
  OpenLibsvm(WriteFile("a.libsvm", "0 1:1\n\n# a comment\n0 1:2\r\n0 1:3\n0 1:4\n"));
  EXPECT_EQ(Next(2), Floats({1, 2}));
  EXPECT_EQ(last_.end_lines, 4);
  EXPECT_EQ(Next(1), Floats({3}));
  EXPECT_EQ(Next(2), Floats({4}));
  EXPECT_TRUE(FindsNothing());
}

TEST_F(StreamReaderTest, ReadsLargeFilesPieceByPiece) {
  std::string text;
  for (int i = 0; i < 300000; ++i) absl::StrAppend(&text, "0 1:", i % 1000, "\n");
  OpenLibsvm(WriteFile("a.libsvm", text));
  uint64_t rows = 0;
  while (!FindsNothing()) rows += Next(70000).size();
  EXPECT_EQ(rows, 300000);
  EXPECT_EQ(at_.offset, text.size());
  EXPECT_EQ(at_.lines, 300000);
}

TEST_F(StreamReaderTest, ReadsTheFilesOfADirectoryInTheOrderOfTheirNames) {
  const std::string path = Directory();
  OpenLibsvm(path);
  EXPECT_TRUE(FindsNothing());
  Append(path + "/2", "0 1:3\n0 1:4");
  Append(path + "/1", "0 1:1\n0 1:2");
  Append(path + "/.hidden", "bad");
  Append(path + "/_temporary", "bad");
  EXPECT_EQ(Next(1), Floats({1}));
  EXPECT_EQ(Next(), Floats({2})) << "the last line of a file that is over needs no end";
  EXPECT_EQ(Next(), Floats({3}));
  EXPECT_TRUE(FindsNothing()) << "the last file may grow";
  Append(path + "/3", "");
  EXPECT_EQ(Next(), Floats({4}));
  Append(path + "/3", "0 1:5\n");
  EXPECT_EQ(Next(), Floats({5}));
  EXPECT_EQ(last_.begin, (StreamPosition{"3", 0, 0}));
}

TEST_F(StreamReaderTest, DoesNotReadAFileThatHasComeTooLate) {
  const std::string path = Directory();
  OpenLibsvm(path);
  Append(path + "/2", "0 1:2\n");
  EXPECT_EQ(Next(), Floats({2}));
  Append(path + "/1", "0 1:1\n");
  testing::internal::CaptureStderr();
  EXPECT_TRUE(FindsNothing());
  EXPECT_TRUE(FindsNothing());
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "warning: " + path + "/1 is not read: it has come after 2, want names in ascending order\n");
}

TEST_F(StreamReaderTest, ErrorsNameFileAndLine) {
  const std::string path = WriteFile("a.libsvm", "0 1:1\n0 1:2\n");
  OpenLibsvm(path);
  Next(1);
  Append(path, "0 1:x\n");
  EXPECT_EQ(Error().substr(0, path.size() + 3), path + ":3:");
  WriteFile("a.libsvm", "0");
  EXPECT_EQ(Error(),
            path + ": got 1 bytes, want at least 6, which were read before: a file of a stream may not shrink");
}

TEST_F(StreamReaderTest, RefusesACompressedFile) {
  const std::string path = Directory();
  Append(path + "/1.gz", Gzip("0 1:1\n"));
  OpenLibsvm(path);
  EXPECT_EQ(Error(), path + "/1.gz: got a compressed file, want plain text in a stream");
}

TEST_F(StreamReaderTest, EachFileOfATableHasItsOwnHeader) {
  const std::string path = Directory();
  Append(path + "/1", "x,y\n1,0\n2,0\n");
  Append(path + "/2", "y,x\n1,3\n1,\"4\"\n1,bad\n");
  OpenCsv(path);
  const std::unique_ptr<Dataset> prototype = reader_->TakePrototype();
  EXPECT_EQ(prototype->features(), 1);
  EXPECT_EQ(prototype->size(), 0);
  EXPECT_EQ(Next(1), Floats({1}));
  EXPECT_EQ(last_.end_lines, 2) << "with the header";
  EXPECT_EQ(Next(), Floats({2})) << "the columns of a later piece are known";
  EXPECT_EQ(Next(1), Floats({3}));
  EXPECT_EQ(Next(1), Floats({4}));
  EXPECT_EQ(Error().substr(0, path.size() + 5), path + "/2:4:");
}

TEST_F(StreamReaderTest, ASampleTellsWhatTheRowsOfATableNeed) {
  const std::string sample = WriteFile("sample.csv", "x,color,y\n2,red,0\n4,blue,1\n");
  const std::string path = WriteFile("a.csv", "x,color,y\n5,red,0\n3,green,1\n");
  data_.mutable_normalization()->set_per_column(true);
  data_.mutable_train()->mutable_csv()->add_categories("color");
  OpenCsv(path, sample);
  EXPECT_EQ(reader_->TakePrototype()->size(), 2);
  EXPECT_EQ(Next(), Floats({2, 0, 1, 0, 0, 0})) << "mean 3, deviation 1; blue, red";
}

TEST_F(StreamReaderTest, ReadsRowsAgain) {
  const std::string path = WriteFile("a.libsvm", "0 1:1\n0 1:2\n0 1:3\n");
  OpenLibsvm(path);
  Next(1);
  Next(2);
  const auto again = reader_->Read(last_);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(ReadAll(**again).features, Floats({2, 3}));
  WriteFile("a.libsvm", "0 1:1\n0 1:2\n");
  EXPECT_EQ(reader_->Read(last_).status(), absl::DataLossError(path + ": got 1 rows in bytes 6 to 18, want 2 as before: "
                                                                      "it has changed"));
}

TEST_F(StreamReaderTest, OpenRefusesWhatIsNotThere) {
  v1::Data data;
  data.mutable_stream();
  data.mutable_train()->mutable_criteo()->set_path("/nonexistent");
  EXPECT_EQ(StreamReader::Open(data, {}).status().code(), absl::StatusCode::kNotFound);
  const std::string path = WriteFile("a.csv", "x,y");
  data.mutable_train()->mutable_csv()->set_path(path);
  data.mutable_train()->mutable_csv()->set_header(true);
  EXPECT_EQ(StreamReader::Open(data, {}).status(),
            absl::InvalidArgumentError(
                path + ": got no complete first row, want one, or data.stream.sample, that tells the columns"));
}

TEST_F(StreamReaderTest, JobDataHasTheStreamAndItsTestData) {
  v1::Data data;
  data.mutable_stream();
  data.mutable_train()->mutable_libsvm()->set_path(WriteFile("a.libsvm", ""));
  data.mutable_train()->mutable_libsvm()->set_features(1);
  data.mutable_test()->mutable_libsvm()->set_path(WriteFile("test.libsvm", "0 1:1\n"));
  data.mutable_test()->mutable_libsvm()->set_features(1);
  const absl::StatusOr<JobData> opened = OpenJobData(data, 1, "");
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_NE(opened->stream, nullptr);
  EXPECT_EQ(opened->train->features(), 1);
  EXPECT_EQ(opened->test->size(), 1);
}

}  // namespace
}  // namespace ballast
