// SPDX-License-Identifier: Apache-2.0
#include "client/watch/table_files.h"

#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "common/storage/checksum.h"
#include "common/storage/file.h"
#include "common/tables/table_spec_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

constexpr uint32_t kDim = 2;

RangeUpdate Update(uint64_t first, size_t count) {
  RangeUpdate update;
  for (size_t i = 0; i < count; ++i) {
    update.ids.push_back(first + i);
    for (uint32_t element = 0; element < kDim; ++element) update.values.push_back(static_cast<float>(first + i));
  }
  return update;
}

class TableFilesTest : public testing::Test {
 protected:
  TableFilesTest() {
    std::filesystem::remove_all(options_.folder);
    options_.file_bytes = 160;
  }

  std::unique_ptr<TableFiles> Make() {
    auto files = TableFiles::Make(SgdTable(3, "users", kDim), options_);
    EXPECT_TRUE(files.ok()) << files.status();
    return *std::move(files);
  }

  std::string Read(const std::string& name) const {
    const absl::StatusOr<std::string> text = ReadFile(absl::StrCat(options_.folder, "/", name));
    EXPECT_TRUE(text.ok()) << text.status();
    return text.value_or("");
  }

  // Reads a file as the format says; returns the first value of each id.
  std::map<uint64_t, float> Rows(const std::string& name) const {
    const std::string text = Read(name);
    uint64_t length = 0;
    std::memcpy(&length, text.data(), 8);
    const Json header = Json::parse(text.substr(8, length));
    const bool half = header["values"]["dtype"] == "BF16";
    EXPECT_EQ(header["ids"]["dtype"], "I64");
    const size_t count = header["ids"]["shape"][0];
    EXPECT_EQ(header["values"]["shape"], (Json{count, kDim}));
    const char* const data = text.data() + 8 + length;
    const char* const values = data + header["values"]["data_offsets"][0].get<size_t>();
    std::map<uint64_t, float> rows;
    for (size_t i = 0; i < count; ++i) {
      uint64_t id = 0;
      std::memcpy(&id, data + header["ids"]["data_offsets"][0].get<size_t>() + i * 8, 8);
      uint32_t bits = 0;
      if (half) {
        std::memcpy(reinterpret_cast<char*>(&bits) + 2, values + i * kDim * 2, 2);
      } else {
        std::memcpy(&bits, values + i * kDim * 4, 4);
      }
      std::memcpy(&rows[id], &bits, 4);
    }
    return rows;
  }

  TableFiles::Options options_{
      .folder = absl::StrCat(testing::TempDir(), "/", testing::UnitTest::GetInstance()->current_test_info()->name())};
};

TEST_F(TableFilesTest, FilesOfLimitedSizeHaveEachRowOnce) {
  for (v1::Encoding encoding : {v1::ENCODING_FP32, v1::ENCODING_BF16}) {
    std::filesystem::remove_all(options_.folder);
    options_.encoding = encoding;
    const auto files = Make();
    // 16 or 12 bytes a row, so 10 or 13 rows a file.
    files->Add(Update(0, 25));
    files->Add(Update(100, 3));
    const absl::StatusOr<TableFiles::Written> written = files->Finish();
    ASSERT_TRUE(written.ok()) << written.status();
    EXPECT_EQ(written->rows, 28u);
    EXPECT_EQ(written->files, 3u);
    const Json manifest = Json::parse(Read("manifest.json"));
    EXPECT_EQ(manifest["table"], "users");
    EXPECT_EQ(manifest["id"], 3);
    EXPECT_EQ(manifest["dim"], kDim);
    EXPECT_EQ(manifest["encoding"], encoding == v1::ENCODING_FP32 ? "fp32" : "bf16");
    EXPECT_EQ(manifest["rows"], 28);
    std::map<uint64_t, float> rows;
    uint64_t bytes = 0;
    for (const Json& file : manifest["files"]) {
      const std::map<uint64_t, float> some = Rows(file["name"]);
      EXPECT_EQ(file["rows"], some.size());
      rows.insert(some.begin(), some.end());
      const std::string text = Read(file["name"]);
      EXPECT_EQ(file["bytes"], text.size());
      EXPECT_EQ(file["xxh3"], absl::StrFormat("%016x", Checksum(text)));
      bytes += text.size();
    }
    EXPECT_EQ(written->bytes, bytes);
    EXPECT_EQ(rows.size(), 28u);
    for (const auto& [id, value] : rows) EXPECT_EQ(value, static_cast<float>(id));
  }
}

TEST_F(TableFilesTest, AnEmptyTableHasAManifestAlone) {
  const absl::StatusOr<TableFiles::Written> written = Make()->Finish();
  ASSERT_TRUE(written.ok());
  EXPECT_EQ(written->files, 0u);
  EXPECT_EQ(Json::parse(Read("manifest.json"))["rows"], 0);
}

TEST_F(TableFilesTest, AFolderWithFilesIsRefused) {
  ASSERT_TRUE(Make()->Finish().ok());
  const absl::Status refused = TableFiles::Make(SgdTable(3, "users", kDim), options_).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("such as manifest.json, want a new or empty folder"));
}

TEST_F(TableFilesTest, AFailureToWriteIsReportedAtTheEndAndLeavesNoManifest) {
  const auto files = Make();
  std::filesystem::remove_all(options_.folder);
  files->Add(Update(0, 25));
  EXPECT_FALSE(files->Finish().ok());
  EXPECT_FALSE(std::filesystem::exists(options_.folder));
}

TEST_F(TableFilesTest, ReadsBackWhatItWrote) {
  for (const v1::Encoding encoding : {v1::ENCODING_FP32, v1::ENCODING_BF16}) {
    std::filesystem::remove_all(options_.folder);
    options_.encoding = encoding;
    const auto files = Make();
    files->Add(Update(5, 40));
    files->Add(Update(~uint64_t{0} - 3, 4));
    ASSERT_TRUE(files->Finish().ok());
    const absl::StatusOr<LoadedTable> table = ReadTableFiles(options_.folder);
    ASSERT_TRUE(table.ok()) << table.status();
    EXPECT_EQ(table->spec.name(), "users");
    EXPECT_EQ(table->spec.DebugString(), SgdTable(3, "users", kDim).DebugString());
    EXPECT_EQ(table->rows->rows(), 44);
    std::vector<float> row(kDim);
    ASSERT_TRUE(table->rows->Find(9, absl::MakeSpan(row)));
    EXPECT_EQ(row, std::vector<float>(kDim, 9));
    EXPECT_TRUE(table->rows->Find(~uint64_t{0}, absl::MakeSpan(row)));
    EXPECT_FALSE(table->rows->Find(4, absl::MakeSpan(row)));
  }
}

TEST_F(TableFilesTest, ReadsNoDamagedFiles) {
  const auto files = Make();
  files->Add(Update(5, 40));
  ASSERT_TRUE(files->Finish().ok());
  const std::string manifest = Read("manifest.json"), rows = Read("rows-00001.safetensors");
  const auto error = [&](const std::string& name, const std::string& text) {
    const std::string path = absl::StrCat(options_.folder, "/", name);
    const std::string before = Read(name);
    EXPECT_TRUE(WriteFileAtomically(path, {text}).ok());
    const absl::Status status = ReadTableFiles(options_.folder).status();
    EXPECT_TRUE(WriteFileAtomically(path, {before}).ok());
    EXPECT_THAT(status.message(), HasSubstr(path));
    return std::string(status.message());
  };
  std::string flipped = rows;
  flipped[flipped.size() / 2] ^= 1;
  EXPECT_THAT(error("rows-00001.safetensors", flipped), HasSubstr("as in the manifest; the file is damaged"));
  EXPECT_THAT(error("rows-00001.safetensors", rows.substr(0, 9)), HasSubstr("the file is damaged"));
  EXPECT_THAT(error("manifest.json", "{}"), HasSubstr("got no \"spec\""));
  EXPECT_THAT(error("manifest.json", "no"), HasSubstr("manifest.json: "));
  EXPECT_THAT(error("manifest.json", absl::StrReplaceAll(manifest, {{"rows-00001.", "../rows-00001."}})),
              HasSubstr("want a file of this folder"));
  EXPECT_THAT(error("manifest.json", absl::StrReplaceAll(manifest, {{"\"dim\": 2", "\"dim\": 0"}})),
              HasSubstr("\"spec\""));
  // Every prefix and every changed byte of the manifest is an error or another valid manifest; none ends the process.
  for (size_t size = 0; size < manifest.size(); size += 7) {
    ASSERT_TRUE(WriteFileAtomically(absl::StrCat(options_.folder, "/manifest.json"), {manifest.substr(0, size)}).ok());
    EXPECT_FALSE(ReadTableFiles(options_.folder).ok()) << size;
  }
  for (size_t at = 0; at < manifest.size(); at += 3) {
    std::string changed = manifest;
    changed[at] = static_cast<char>(changed[at] ^ 5);
    ASSERT_TRUE(WriteFileAtomically(absl::StrCat(options_.folder, "/manifest.json"), {changed}).ok());
    (void)ReadTableFiles(options_.folder);
  }
}

}  // namespace
}  // namespace ballast
