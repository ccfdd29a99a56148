// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "worker/data/files/text_rows.h"

// The syntax of CSV: RFC 4180, with blanks around fields, and with any delimiter.
namespace ballast {

// The kinds of the fields of each row.
struct CsvFormat {
  enum class Field : uint8_t { kNumber, kText, kSkipped };

  char delimiter = ',';
  std::vector<Field> fields;
};

// The first error in a row. `text` is part of the row.
struct CsvFault {
  enum Kind : uint8_t {
    kNone,
    // The row does not have as many fields as the format.
    kColumns,
    // A quoted field has no closing quote, or text after it.
    kQuote,
    kMissing,
    kNumber,
    // Errors of a text; see the sink that returns them.
    kUnknown,
    kEncoding,
    kTooLong,
    kTooMany,
  };

  Kind kind = kNone;
  size_t field = 0;
  absl::string_view text;
};

// A field of a row.
struct CsvField {
  // The field without blanks and quotes around it.
  absl::string_view text;
  // The text has two quotes for each one that is meant.
  bool doubled = false;
  // False for CsvFault::kQuote.
  bool good = true;
  // The delimiter after the field, or the end of the row.
  const char* next = nullptr;
};

CsvField TakeCsvField(const char* begin, const char* end, char delimiter);

// Returns the text of a field with single quotes. It is in `buffer` if that differs from the row.
absl::string_view CsvText(const CsvField& field, std::string& buffer);

// Returns all fields of a row as texts.
absl::StatusOr<std::vector<std::string>> CsvTexts(absl::string_view row, char delimiter);

// Returns the error for CsvFault::kQuote in `what`.
absl::Status BadQuotes(absl::string_view what, absl::string_view text);

// A TextRows::RowEnd: a "\n" inside quotes ends no row.
size_t CsvRowEnd(absl::string_view text, char delimiter);

// Returns whether a field means that the value is missing.
bool IsMissingValue(absl::string_view text);

// Calls visit(text) for each id in a field of ids: the field itself, or its parts between separators, without blanks
// around them and missing ones.
template <typename Visit>
void VisitIds(absl::string_view text, absl::string_view separator, Visit visit) {
  if (separator.empty()) {
    visit(text);
    return;
  }
  for (const absl::string_view part : absl::StrSplit(text, separator)) {
    const absl::string_view id = absl::StripAsciiWhitespace(part);
    if (!IsMissingValue(id)) visit(id);
  }
}

inline const char* SkipCsvBlanks(const char* at, const char* end, char delimiter) {
  while (at != end && (*at == ' ' || *at == '\t') && *at != delimiter) ++at;
  return at;
}

// Passes a field that is not a plain number to the sink.
template <typename Sink>
CsvFault::Kind ParseCsvField(size_t i, const CsvField& field, CsvFormat::Field kind, std::string& buffer, Sink& sink) {
  if (!field.good) return CsvFault::kQuote;
  if (kind == CsvFormat::Field::kSkipped) return CsvFault::kNone;
  if (IsMissingValue(field.text)) return sink.Missing(i);
  if (kind == CsvFormat::Field::kText) return sink.Text(i, CsvText(field, buffer));
  const char* const end = field.text.data() + field.text.size();
  const TextNumber number = ParseNumber(field.text.data(), end);
  if (std::isnan(number.value) || number.end != end) return CsvFault::kNumber;
  sink.Number(i, number.value);
  return CsvFault::kNone;
}

// Parses a row and calls sink.Number(field, double), sink.Text(field, text) and sink.Missing(field); the latter two
// return a CsvFault::Kind. Stops at the first fault.
template <typename Sink>
CsvFault ParseCsvRow(absl::string_view row, const CsvFormat& format, Sink& sink) {
  const char* at = row.data();
  const char* const end = at + row.size();
  const size_t fields = format.fields.size();
  std::string buffer;
  for (size_t i = 0; i < fields; ++i) {
    const char* next = nullptr;
    if (format.fields[i] == CsvFormat::Field::kNumber) {
      const TextNumber number = ParseNumber(SkipCsvBlanks(at, end, format.delimiter), end);
      next = SkipCsvBlanks(number.end, end, format.delimiter);
      const bool whole = !std::isnan(number.value) && (next == end || *next == format.delimiter);
      if (whole) sink.Number(i, number.value);
      if (!whole) next = nullptr;
    }
    if (next == nullptr) {
      const CsvField field = TakeCsvField(at, end, format.delimiter);
      const CsvFault::Kind fault = ParseCsvField(i, field, format.fields[i], buffer, sink);
      if (fault != CsvFault::kNone) return {fault, i, field.text};
      next = field.next;
    }
    if ((next == end) != (i + 1 == fields)) return {CsvFault::kColumns, i, {}};
    at = next == end ? end : next + 1;
  }
  return {};
}

}  // namespace ballast
