// SPDX-License-Identifier: Apache-2.0
#include "worker/data/datasets/csv_row.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "worker/data/datasets/table_schema.h"

namespace ballast {
namespace {

// Returns the closing quote of a field whose opening quote is before `at`, or null. Sets `doubled`.
const char* ClosingQuote(const char* at, const char* end, bool& doubled) {
  while ((at = std::find(at, end, '"')) != end) {
    if (at + 1 == end || at[1] != '"') return at;
    doubled = true;
    at += 2;
  }
  return nullptr;
}

}  // namespace

CsvField TakeCsvField(const char* begin, const char* end, char delimiter) {
  CsvField field;
  begin = SkipCsvBlanks(begin, end, delimiter);
  if (begin == end || *begin != '"') {
    field.next = std::find(begin, end, delimiter);
    const char* last = field.next;
    while (last != begin && (last[-1] == ' ' || last[-1] == '\t')) --last;
    field.text = {begin, size_t(last - begin)};
    return field;
  }
  const char* const closing = ClosingQuote(begin + 1, end, field.doubled);
  if (closing == nullptr) return {.text = {begin, size_t(end - begin)}, .good = false, .next = end};
  field.text = {begin + 1, size_t(closing - begin - 1)};
  field.next = SkipCsvBlanks(closing + 1, end, delimiter);
  field.good = field.next == end || *field.next == delimiter;
  return field;
}

absl::string_view CsvText(const CsvField& field, std::string& buffer) {
  if (!field.doubled) return field.text;
  buffer = absl::StrReplaceAll(field.text, {{"\"\"", "\""}});
  return buffer;
}

absl::StatusOr<std::vector<std::string>> CsvTexts(absl::string_view row, char delimiter) {
  std::vector<std::string> texts;
  const char* at = row.data();
  const char* const end = at + row.size();
  std::string buffer;
  while (true) {
    const CsvField field = TakeCsvField(at, end, delimiter);
    if (!field.good) return BadQuotes(absl::StrCat("column ", texts.size(), " (counted from 0)"), field.text);
    texts.emplace_back(CsvText(field, buffer));
    if (field.next == end) return texts;
    at = field.next + 1;
  }
}

absl::Status BadQuotes(absl::string_view what, absl::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat(
      what, " begins with a quote, want another one at its end, and quotes inside it doubled: got ", QuotedText(text)));
}

size_t CsvRowEnd(absl::string_view text, char delimiter) {
  const size_t line = text.find('\n');
  if (text.substr(0, line).find('"') == text.npos) return line;
  const char* at = text.data();
  const char* const end = at + text.size();
  bool doubled = false;
  while (true) {
    at = SkipCsvBlanks(at, end, delimiter);
    if (at != end && *at == '"') {
      at = ClosingQuote(at + 1, end, doubled);
      if (at == nullptr) return text.npos;
      ++at;
    }
    at = std::find_if(at, end, [&](char c) { return c == delimiter || c == '\n'; });
    if (at == end) return text.npos;
    if (*at == '\n') return at - text.data();
    ++at;
  }
}

bool IsMissingValue(absl::string_view text) {
  if (text.empty() || text == "?") return true;
  if (text.size() > 4) return false;
  return absl::EqualsIgnoreCase(text, "na") || absl::EqualsIgnoreCase(text, "nan") ||
         absl::EqualsIgnoreCase(text, "null");
}

}  // namespace ballast
