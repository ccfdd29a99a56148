// SPDX-License-Identifier: Apache-2.0
#include "common/job/data_validation.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace ballast {
namespace {

// True for a character that can stand between numbers.
bool IsDelimiter(absl::string_view text) {
  return text.size() == 1 && (absl::ascii_isprint(text[0]) || text[0] == '\t') && !absl::ascii_isalnum(text[0]) &&
         text[0] != '+' && text[0] != '-' && text[0] != '.' && text[0] != '"';
}

// True for a character that can stand between ids.
bool IsSeparator(absl::string_view text) {
  return text.size() == 1 && (absl::ascii_isprint(text[0]) || text[0] == '\t') && text[0] != '"';
}

// A column is named by one list at most; a list may name it twice.
void CheckColumns(const v1::Csv& csv, const std::string& field, ValidationErrors& errors) {
  std::map<absl::string_view, absl::string_view> list_of;
  const auto check = [&](const auto& names, absl::string_view list) {
    for (const std::string& name : names) {
      const absl::string_view before = list_of.try_emplace(name, list).first->second;
      errors.CheckText(before == list, absl::StrCat(field, ".", list), name,
                       absl::StrCat("another column, because ", before, " has it"));
    }
  };
  check(csv.categories(), "categories");
  check(csv.ignore(), "ignore");
  check(csv.hashed(), "hashed");
  check(csv.looked_up(), "looked_up");
  const std::string& separator = csv.id_separator();
  const std::string delimiter = csv.delimiter().empty() ? "," : csv.delimiter();
  errors.CheckText(separator.empty() || (IsSeparator(separator) && separator != delimiter), field + ".id_separator",
                   separator, "one character other than the delimiter and quotes");
}

void CheckCsv(const v1::Csv& csv, const std::string& field, ValidationErrors& errors) {
  errors.CheckText(csv.delimiter().empty() || IsDelimiter(csv.delimiter()), field + ".delimiter", csv.delimiter(),
                   "one character that cannot be part of a number");
  CheckColumns(csv, field, errors);
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
  check(same(test.hashed(), train.hashed()), "hashed");
  check(same(test.looked_up(), train.looked_up()), "looked_up");
  check(test.id_separator().empty() || test.id_separator() == train.id_separator(), "id_separator");
  check(test.missing() == v1::REFUSE || test.missing() == train.missing(), "missing");
}

void CheckPlantedClicks(const v1::PlantedClicks& clicks, const std::string& field, ValidationErrors& errors) {
  const uint64_t end = clicks.end() == 0 ? clicks.rows() : clicks.end();
  errors.Check(end <= clicks.rows(), field + ".end", end, absl::StrCat("at most ", clicks.rows(), ", the rows"));
  errors.Check(clicks.begin() < end, field + ".begin", clicks.begin(), absl::StrCat("less than ", end, ", the end"));
}

// Test data of planted clicks has the truth of the training data.
void CheckTestClicks(const v1::PlantedClicks& train, const v1::PlantedClicks& test, ValidationErrors& errors) {
  const auto check = [&](absl::string_view name, auto got, auto want) {
    errors.Check(got == want, absl::StrCat("data.test.planted_clicks.", name), got,
                 absl::StrCat(want, ", as in data.train"));
  };
  const auto effective = [](const v1::PlantedClicks& clicks) {
    v1::PlantedClicks all = clicks;
    if (all.days() == 0) all.set_days(7);
    if (!all.has_drift()) all.set_drift(0.02);
    if (all.ids() == 0) all.set_ids(10'131'227);
    if (!all.has_click_rate()) all.set_click_rate(0.256);
    if (!all.has_deviation()) all.set_deviation(1.4);
    return all;
  };
  const v1::PlantedClicks got = effective(test), want = effective(train);
  check("rows", got.rows(), want.rows());
  check("seed", got.seed(), want.seed());
  check("days", got.days(), want.days());
  check("drift", got.drift(), want.drift());
  check("ids", got.ids(), want.ids());
  check("click_rate", got.click_rate(), want.click_rate());
  check("deviation", got.deviation(), want.deviation());
}

// Rows of a stream are read one by one, so nothing that is computed over all of them is known.
void CheckStream(const v1::Data& data, ValidationErrors& errors) {
  const v1::DataSource& train = data.train();
  const std::string path = StreamPath(train);
  if (train.format_case() != v1::DataSource::FORMAT_NOT_SET) {
    errors.Check(train.has_csv() || !path.empty(), "data.stream", "data.train of another format",
                 "csv, criteo, libffm or libsvm: rows of text");
  }
  errors.CheckText(!absl::EndsWith(path, ".gz"), "data.train", path, "plain text: a stream is not compressed");
  errors.Check(data.test_share() == 0, "data.test_share", data.test_share(), "data.test: a stream has no end");
  const std::string& sample = data.stream().sample();
  errors.CheckText(sample.empty() || train.has_csv(), "data.stream.sample", sample, "nothing: only csv needs one");
  if (!sample.empty()) return;
  const v1::Csv& csv = train.csv();
  const auto check = [&](bool unset, absl::string_view field) {
    errors.Check(unset, field, "a value that is found in all rows", "data.stream.sample too, whose rows have it");
  };
  check(csv.categories().empty(), "data.train.csv.categories");
  check(csv.looked_up().empty(), "data.train.csv.looked_up");
  check(csv.missing() == v1::REFUSE, "data.train.csv.missing");
  check(!csv.text_labels(), "data.train.csv.text_labels");
  check(!data.normalization().per_column(), "data.normalization.per_column");
}

}  // namespace

std::string StreamPath(const v1::DataSource& source) {
  switch (source.format_case()) {
    case v1::DataSource::kCsv:
      return source.csv().path();
    case v1::DataSource::kLibsvm:
      return source.libsvm().path();
    case v1::DataSource::kLibffm:
      return source.libffm().path();
    case v1::DataSource::kCriteo:
      return source.criteo().path();
    default:
      return "";
  }
}

void CheckData(const v1::Data& data, ValidationErrors& errors) {
  CheckCsv(data.train().csv(), "data.train.csv", errors);
  CheckCsv(data.test().csv(), "data.test.csv", errors);
  if (data.train().has_csv() && data.test().has_csv()) CheckTestCsv(data.train().csv(), data.test().csv(), errors);
  for (const auto& [source, field] : {std::pair(&data.train(), "data.train"), std::pair(&data.test(), "data.test")}) {
    if (!source->has_planted_clicks()) continue;
    CheckPlantedClicks(source->planted_clicks(), absl::StrCat(field, ".planted_clicks"), errors);
  }
  if (data.train().has_planted_clicks() && data.test().has_planted_clicks()) {
    CheckTestClicks(data.train().planted_clicks(), data.test().planted_clicks(), errors);
  }
  if (data.has_stream()) CheckStream(data, errors);
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
