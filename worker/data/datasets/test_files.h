// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <zlib.h>

#include <cstdint>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "worker/data/datasets/dataset.h"

namespace ballast {

// Writes a file that only the running test uses, and returns its path.
inline std::string WriteFile(const std::string& name, const std::string& content) {
  const testing::TestInfo& test = *testing::UnitTest::GetInstance()->current_test_info();
  // The name of a parameterized test contains "/".
  const std::string file_name =
      absl::StrReplaceAll(absl::StrCat(test.test_suite_name(), ".", test.name(), ".", name), {{"/", "."}});
  const std::string path = absl::StrCat(testing::TempDir(), "/", file_name);
  std::ofstream file(path, std::ios::binary);
  file << content;
  file.close();
  EXPECT_TRUE(file) << path;
  return path;
}

// Returns the content as one gzip member.
inline std::string Gzip(const std::string& content) {
  z_stream stream = {};
  EXPECT_EQ(deflateInit2(&stream, 9, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&stream, content.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(content.data()));
  stream.avail_in = content.size();
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = out.size();
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

// Returns the extreme labels as text like "2.5 at train.csv:4".
inline std::vector<std::string> ExtremeLabels(const Dataset& dataset) {
  std::vector<std::string> labels;
  for (const PlacedLabel& each : dataset.ExtremeLabels())
    labels.push_back(absl::StrCat(each.label, " at ", each.where));
  return labels;
}

// All of a data set, in file order.
struct Examples {
  std::vector<float> features;
  std::vector<float> labels;
  IdBags ids;
};

using Bags = std::vector<std::vector<uint64_t>>;

// Returns the bags as lists, example by example and field by field.
inline Bags BagsOf(const IdBags& ids) {
  Bags bags;
  uint32_t begin = 0;
  for (const uint32_t end : ids.ends) {
    const bool good = begin <= end && end <= ids.ids.size();
    EXPECT_TRUE(good) << begin << " to " << end;
    if (!good) return bags;
    bags.emplace_back(ids.ids.begin() + begin, ids.ids.begin() + end);
    begin = end;
  }
  EXPECT_EQ(begin, ids.ids.size());
  return bags;
}

inline Examples ReadAll(const Dataset& dataset) {
  std::vector<uint64_t> indices(dataset.size());
  std::iota(indices.begin(), indices.end(), 0);
  Examples all = {std::vector<float>(dataset.size() * dataset.features()), std::vector<float>(dataset.size()), {}};
  const absl::Status status = dataset.Read(indices, absl::MakeSpan(all.features), absl::MakeSpan(all.labels), &all.ids);
  EXPECT_TRUE(status.ok()) << status;
  return all;
}

}  // namespace ballast
