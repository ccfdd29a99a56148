// SPDX-License-Identifier: Apache-2.0
// Data to predict from, which need not have labels.
#include <cmath>

#include "worker/data/datasets/test_files.h"

namespace ballast {
namespace {

using Floats = std::vector<float>;
using std::string_literals::operator""s;

constexpr char kImages[] = "\0\0\x08\x02\0\0\0\x02\0\0\0\x01\x07\x09";

v1::DataSource Idx(const std::string& labels) {
  v1::DataSource source;
  source.mutable_idx()->set_images(WriteFile("images", std::string(kImages, sizeof(kImages) - 1)));
  source.mutable_idx()->set_labels(labels);
  return source;
}

v1::DataSource Libsvm(const std::string& rows) {
  v1::DataSource source;
  source.mutable_libsvm()->set_path(WriteFile("rows", rows));
  source.mutable_libsvm()->set_features(2);
  return source;
}

TEST(OptionalLabelsTest, ImagesNeedNoFileOfLabels) {
  const auto dataset = OpenDataset(Idx(""), {.labels_optional = true});
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_FALSE((*dataset)->has_labels());
  const Examples all = ReadAll(**dataset);
  EXPECT_EQ(all.features, (Floats{7, 9}));
  EXPECT_TRUE(std::isnan(all.labels[0]) && std::isnan(all.labels[1]));
  EXPECT_FALSE(OpenDataset(Idx(""), {}).ok());
}

TEST(OptionalLabelsTest, LabelsThatAreThereAreRead) {
  const auto idx = OpenDataset(Idx(WriteFile("labels", "\0\0\x08\x01\0\0\0\x02\x03\x01"s)), {.labels_optional = true});
  ASSERT_TRUE(idx.ok()) << idx.status();
  EXPECT_TRUE((*idx)->has_labels());
  EXPECT_EQ(ReadAll(**idx).labels, (Floats{3, 1}));
  const auto libsvm = OpenDataset(Libsvm("3 1:5\n1\n"), {.labels_optional = true});
  ASSERT_TRUE(libsvm.ok()) << libsvm.status();
  EXPECT_TRUE((*libsvm)->has_labels());
  EXPECT_EQ(ReadAll(**libsvm).labels, (Floats{3, 1}));
}

TEST(OptionalLabelsTest, RowsOfLibsvmNeedNoLabel) {
  const auto dataset = OpenDataset(Libsvm("1:5 2:6\n4 2:7\n"), {.labels_optional = true});
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_FALSE((*dataset)->has_labels());
  const Examples all = ReadAll(**dataset);
  EXPECT_EQ(all.features, (Floats{5, 6, 0, 7}));
  EXPECT_TRUE(std::isnan(all.labels[0]));
  EXPECT_EQ(all.labels[1], 4);
  const absl::Status strict = OpenDataset(Libsvm("1:5 2:6\n"), {}).status();
  EXPECT_EQ(strict.code(), absl::StatusCode::kInvalidArgument);
  const absl::Status text = OpenDataset(Libsvm("cat 1:5\n"), {.labels_optional = true}).status();
  EXPECT_EQ(text.code(), absl::StatusCode::kInvalidArgument);
}

TEST(OptionalLabelsTest, RowsOfLibffmNeedNoLabel) {
  v1::DataSource source;
  source.mutable_libffm()->set_path(WriteFile("rows", "0:5:1 1:6:1\n1 1:6:1\n"));
  source.mutable_libffm()->set_fields(2);
  const auto dataset = OpenDataset(source, {.labels_optional = true});
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_FALSE((*dataset)->has_labels());
  const Examples all = ReadAll(**dataset);
  EXPECT_TRUE(std::isnan(all.labels[0]));
  EXPECT_EQ(all.labels[1], 1);
  const Bags bags = BagsOf(all.ids);
  ASSERT_EQ(bags.size(), 4);
  EXPECT_EQ(bags[0].size(), 1);
  EXPECT_EQ(bags[1], bags[3]);
  EXPECT_FALSE(OpenDataset(source, {}).ok());
}

}  // namespace
}  // namespace ballast
