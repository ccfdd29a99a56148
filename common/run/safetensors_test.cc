// SPDX-License-Identifier: Apache-2.0
#include "common/run/safetensors.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <fstream>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/storage/file.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

std::string Path(const std::string& name) { return testing::TempDir() + "/safetensors_test_" + name; }

// Reads a file with the given header, followed by `data_bytes` zero bytes.
absl::Status ReadCrafted(const std::string& header, int data_bytes) {
  const std::string path = Path("crafted");
  std::string length(8, '\0');
  for (int i = 0; i < 8; ++i) length[i] = static_cast<char>(uint64_t{header.size()} >> (8 * i));
  const std::string data(data_bytes, '\0');
  if (absl::Status status = WriteFileAtomically(path, {length, header, data}); !status.ok()) {
    return status;
  }
  return ReadSafetensors(path).status();
}

std::string Entry(const std::string& name, const std::string& shape, const std::string& offsets) {
  return absl::StrCat("\"", name, "\":{\"dtype\":\"F32\",\"shape\":", shape, ",\"data_offsets\":", offsets, "}");
}

TEST(SafetensorsTest, ReadsBackWhatWasWritten) {
  const std::vector<float> weight = {1, -2.5, 3, std::numeric_limits<float>::infinity(), 5, 6};
  const std::vector<float> scalar = {7};
  ASSERT_TRUE(WriteSafetensors(Path("a"),
                               {{"fc1/weight", {2, 3}, weight}, {"empty", {0, 4}, {}}, {"scalar", {}, scalar}},
                               {{"job", "fashion \"x\""}})
                  .ok());
  const Safetensors read = ReadSafetensors(Path("a")).value();
  ASSERT_EQ(read.tensors.size(), 3);
  EXPECT_EQ(read.tensors[0].name, "fc1/weight");
  EXPECT_THAT(read.tensors[0].shape, ElementsAre(2, 3));
  EXPECT_EQ(read.tensors[0].values, weight);
  EXPECT_EQ(read.tensors[1].name, "empty");
  EXPECT_THAT(read.tensors[1].values, IsEmpty());
  EXPECT_THAT(read.tensors[2].shape, IsEmpty());
  EXPECT_EQ(read.tensors[2].values, scalar);
  EXPECT_THAT(read.metadata, ElementsAre(Pair("job", "fashion \"x\"")));
}

TEST(SafetensorsTest, LayoutIsTheFormats) {
  const std::vector<float> values = {1.0f};
  ASSERT_TRUE(WriteSafetensors(Path("layout"), {{"w", {1}, values}}, {}).ok());
  const std::string file = ReadFile(Path("layout")).value();
  const std::string header = R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  ASSERT_EQ(header.size(), 54);
  EXPECT_EQ(file, std::string("\x38\0\0\0\0\0\0\0", 8) + header + "  " + std::string("\0\0\x80\x3f", 4));
}

TEST(SafetensorsTest, NoTensorsMakeAValidFile) {
  ASSERT_TRUE(WriteSafetensors(Path("none"), {}, {}).ok());
  EXPECT_THAT(ReadSafetensors(Path("none")).value().tensors, IsEmpty());
}

TEST(SafetensorsTest, WriterRefusesAShapeThatDoesNotFitItsValues) {
  const std::vector<float> values(5);
  const absl::Status status = WriteSafetensors(Path("b"), {{"w", {2, 3}, values}}, {});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("tensor \"w\" has 5 elements, want shape [2, 3]"));
}

TEST(SafetensorsTest, WriterRefusesNamesThatNoReaderCouldTellApart) {
  for (const std::string name : {"", "__metadata__", "\xff"}) {
    EXPECT_FALSE(WriteSafetensors(Path("c"), {{name, {0}, {}}}, {}).ok()) << name;
  }
  EXPECT_FALSE(WriteSafetensors(Path("c"), {{"w", {0}, {}}, {"w", {0}, {}}}, {}).ok());
}

TEST(SafetensorsTest, TakesAFileOfAnotherWriterWhoseTensorsAreInAnyOrder) {
  EXPECT_TRUE(ReadCrafted("{" + Entry("b", "[1]", "[4,8]") + "," + Entry("a", "[1]", "[0,4]") + "}", 8).ok());
}

TEST(SafetensorsTest, ReaderSaysWhatDoesNotHold) {
  struct Case {
    std::string header;
    int data_bytes;
    std::string error;
  };
  const Case cases[] = {
      {"[]", 0, "header is not a JSON object"},
      {"{\"a\":1", 0, "header is not a JSON object"},
      {"{\"a\":1}", 0, "tensor \"a\": want an object"},
      {"{" + Entry("a", "[2]", "[0,4]") + "}", 4, "tensor \"a\": 4 bytes, want shape [2]"},
      {"{" + Entry("a", "[-1]", "[0,4]") + "}", 4, "\"shape\": want a list of counts"},
      {"{" + Entry("a", "[1]", "[4,0]") + "}", 4, "\"data_offsets\": want [begin, end]"},
      {"{" + Entry("a", "[1]", "[0]") + "}", 4, "\"data_offsets\": want [begin, end]"},
      {"{" + Entry("a", "[4611686018427387904,4]", "[0,0]") + "}", 0, "0 bytes, want shape"},
      {"{" + Entry("a", "[9223372036854775808]", "[0,0]") + "}", 0, "0 bytes, want shape"},
      {"{" + Entry("a", "[2]", "[0,8]") + "}", 4, "want it to begin at 0 and to fit"},
      {"{" + Entry("a", "[1]", "[4,8]") + "}", 8, "want it to begin at 0 and to fit"},
      {"{" + Entry("a", "[2]", "[0,8]") + "," + Entry("b", "[1]", "[4,8]") + "}", 8,
       "tensor \"b\" is at bytes 4 to 8 of 8, want it to begin at 8"},
      {"{" + Entry("a", "[1]", "[0,4]") + "," + Entry("a", "[1]", "[4,8]") + "}", 8, "tensor \"a\" occurs twice"},
      {"{" + Entry("a", "[1]", "[0,4]") + "}", 8, "holds 8 bytes of values, want 4"},
      {"{\"__metadata__\":{\"a\":1}}", 0, "__metadata__: \"a\": want a string"},
  };
  for (const Case& c : cases) {
    const absl::Status status = ReadCrafted(c.header, c.data_bytes);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.header;
    EXPECT_THAT(status.message(), HasSubstr(c.error));
    EXPECT_THAT(status.message(), HasSubstr(Path("crafted")));
  }
}

TEST(SafetensorsTest, OtherElementTypesAreUnimplemented) {
  const absl::Status status = ReadCrafted(R"({"a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}})", 4);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(status.message(), HasSubstr("dtype is BF16, want F32"));
}

TEST(SafetensorsTest, RefusesEveryFileThatIsCutOff) {
  const std::vector<float> values = {1, 2, 3};
  ASSERT_TRUE(WriteSafetensors(Path("whole"), {{"w", {3}, values}}, {}).ok());
  const std::string whole = ReadFile(Path("whole")).value();
  for (size_t size = 0; size < whole.size(); ++size) {
    ASSERT_TRUE(WriteFileAtomically(Path("cut"), {absl::string_view(whole).substr(0, size)}).ok());
    EXPECT_EQ(ReadSafetensors(Path("cut")).status().code(), absl::StatusCode::kInvalidArgument) << size;
  }
}

TEST(SafetensorsTest, HeaderLengthBeyondTheFileIsRefusedWithoutAllocatingIt) {
  ASSERT_TRUE(WriteFileAtomically(Path("huge"), {std::string(8, '\xff')}).ok());
  EXPECT_THAT(ReadSafetensors(Path("huge")).status().message(),
              HasSubstr("header of 18446744073709551615 bytes, want at most 0"));
}

TEST(SafetensorsTest, NumpyReadsTheSameValues) {
  if (std::system("/usr/bin/python3 -c 'import numpy' 2>/dev/null") != 0) {
    GTEST_SKIP() << "needs /usr/bin/python3 with numpy";
  }
  const std::vector<float> weight = {1, 2, 3, 4, 5, 6.5};
  const std::vector<float> bias = {-1, 0.25};
  ASSERT_TRUE(
      WriteSafetensors(Path("numpy"), {{"fc1/weight", {2, 3}, weight}, {"b", {2}, bias}}, {{"job", "fashion"}}).ok());
  std::ofstream(Path("numpy.py")) << R"(
import json, struct, sys
import numpy
data = open(sys.argv[1], 'rb').read()
start = 8 + struct.unpack('<Q', data[:8])[0]
header = json.loads(data[8:start])
assert header.pop('__metadata__') == {'job': 'fashion'}
assert start % 8 == 0
tensors = {name: numpy.frombuffer(data[start + t['data_offsets'][0]:start + t['data_offsets'][1]],
                                  '<f4').reshape(t['shape']) for name, t in header.items()}
assert tensors['fc1/weight'].tolist() == [[1, 2, 3], [4, 5, 6.5]], tensors
assert tensors['b'].tolist() == [-1, 0.25], tensors
assert list(tensors) == ['fc1/weight', 'b'], tensors
)";
  EXPECT_EQ(std::system(absl::StrCat("/usr/bin/python3 ", Path("numpy.py"), " ", Path("numpy")).c_str()), 0);
}

}  // namespace
}  // namespace ballast
