// SPDX-License-Identifier: Apache-2.0
#include "common/job/data_validation.h"

#include <algorithm>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace ballast {
namespace {

// True for a character that can stand between numbers.
bool IsDelimiter(absl::string_view text) {
  return text.size() == 1 && (absl::ascii_isprint(text[0]) || text[0] == '\t') && !absl::ascii_isalnum(text[0]) &&
         text[0] != '+' && text[0] != '-' && text[0] != '.' && text[0] != '"';
}

void CheckCsv(const v1::Csv& csv, const std::string& field, ValidationErrors& errors) {
  errors.CheckText(csv.delimiter().empty() || IsDelimiter(csv.delimiter()), field + ".delimiter", csv.delimiter(),
                   "one character that cannot be part of a number");
  if (csv.label().empty()) return;
  errors.CheckText(csv.header(), field + ".label", csv.label(), "header: true with it, or label_column instead");
  errors.Check(csv.label_column() == 0, field + ".label_column", csv.label_column(), "nothing, because label is set");
}

// A test file is read like the training file: what it says about columns must not differ.
void CheckTestCsv(const v1::Csv& train, const v1::Csv& test, ValidationErrors& errors) {
  const auto check = [&](bool same_or_unset, absl::string_view name) {
    errors.Check(same_or_unset, absl::StrCat("data.test.csv.", name), "another value than in data.train",
                 "nothing: test data has the columns of the training data");
  };
  const auto same = [](const auto& a, const auto& b) {
    return a.empty() || std::equal(a.begin(), a.end(), b.begin(), b.end());
  };
  check(test.label_column() == 0 || test.label_column() == train.label_column(), "label_column");
  check(test.label().empty() || test.label() == train.label(), "label");
  check(!test.text_labels() || train.text_labels(), "text_labels");
  check(same(test.categories(), train.categories()), "categories");
  check(same(test.ignore(), train.ignore()), "ignore");
  check(test.missing() == v1::REFUSE || test.missing() == train.missing(), "missing");
}

}  // namespace

void CheckData(const v1::Data& data, ValidationErrors& errors) {
  CheckCsv(data.train().csv(), "data.train.csv", errors);
  CheckCsv(data.test().csv(), "data.test.csv", errors);
  if (data.train().has_csv() && data.test().has_csv()) CheckTestCsv(data.train().csv(), data.test().csv(), errors);
  errors.Check(!data.has_test() || data.test_share() == 0, "data.test_share", data.test_share(),
               "nothing, because data.test is set");
  const v1::Normalization& normalization = data.normalization();
  if (!normalization.per_column()) return;
  const std::string field = "data.normalization.per_column";
  errors.Check(normalization.mean() == 0 && !normalization.has_stddev(), field, "true with a mean or stddev",
               "one or the other");
  errors.Check(data.train().has_csv() && (data.test().has_csv() || !data.has_test()), field, "true", "csv data");
}

}  // namespace ballast
