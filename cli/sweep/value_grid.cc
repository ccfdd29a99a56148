// SPDX-License-Identifier: Apache-2.0
#include "cli/sweep/value_grid.h"

#include <algorithm>
#include <map>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace ballast {
namespace {

// One setting.
struct Axis {
  std::string field;
  std::vector<std::string> values;
};

absl::Status Refuse(absl::string_view setting, absl::string_view want) {
  return absl::InvalidArgumentError(absl::StrCat("flag --set: got \"", setting, "\", want ", want));
}

absl::StatusOr<std::vector<std::string>> SplitValues(absl::string_view setting, absl::string_view text) {
  std::vector<std::string> values = {""};
  // The closing characters of the quotes and brackets that are open.
  std::string open;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool quoted = !open.empty() && (open.back() == '"' || open.back() == '\'');
    if (quoted && c == '\\' && i + 1 < text.size()) {
      absl::StrAppend(&values.back(), text.substr(i++, 2));
      continue;
    }
    if (!open.empty() && c == open.back()) {
      open.pop_back();
    } else if (!quoted) {
      const size_t bracket = absl::string_view("[{(\"'").find(c);
      if (bracket != absl::string_view::npos) open.push_back("]})\"'"[bracket]);
      if (c == ',' && open.empty()) {
        values.emplace_back();
        continue;
      }
    }
    values.back().push_back(c);
  }
  if (!open.empty()) return Refuse(setting, absl::StrCat("a closing ", open.substr(open.size() - 1)));
  for (std::string& value : values) {
    value = std::string(absl::StripAsciiWhitespace(value));
    if (value.empty()) return Refuse(setting, "a value before and after each comma");
  }
  return values;
}

absl::StatusOr<Axis> ReadAxis(absl::string_view setting) {
  const size_t equals = setting.find('=');
  if (equals == absl::string_view::npos || equals == 0) return Refuse(setting, "FIELD=VALUE or FIELD=VALUE,VALUE,...");
  absl::StatusOr<std::vector<std::string>> values = SplitValues(setting, setting.substr(equals + 1));
  if (!values.ok()) return values.status();
  return Axis{std::string(absl::StripAsciiWhitespace(setting.substr(0, equals))), *std::move(values)};
}

std::string LastPart(const std::string& field) { return field.substr(field.rfind('.') + 1); }

void SetNames(const std::vector<Axis>& axes, std::vector<GridPoint>& points) {
  std::map<std::string, int> uses;
  for (const Axis& axis : axes) uses[LastPart(axis.field)] += axis.values.size() > 1 ? 1 : 0;
  for (GridPoint& point : points) {
    for (size_t i = 0; i < axes.size(); ++i) {
      if (axes[i].values.size() == 1) continue;
      const auto& [field, value] = point.settings[i];
      const std::string last = LastPart(field);
      absl::StrAppend(&point.name, point.name.empty() ? "" : " ", uses[last] == 1 ? last : field, "=", value);
    }
  }
}

}  // namespace

absl::StatusOr<std::vector<GridPoint>> MakeGrid(absl::Span<const std::string> settings) {
  std::vector<Axis> axes;
  std::vector<GridPoint> points(1);
  for (const std::string& setting : settings) {
    absl::StatusOr<Axis> axis = ReadAxis(setting);
    if (!axis.ok()) return axis.status();
    if (std::ranges::any_of(axes, [&](const Axis& other) { return other.field == axis->field; })) {
      return Refuse(setting, absl::StrCat("each field once; ", axis->field, " is set twice"));
    }
    if (points.size() * axis->values.size() > kMaxGridPoints) {
      return Refuse(setting,
                    absl::StrCat("at most ", kMaxGridPoints, " runs, not ", points.size() * axis->values.size()));
    }
    std::vector<GridPoint> longer;
    for (const GridPoint& point : points) {
      for (const std::string& value : axis->values) {
        longer.push_back(point);
        longer.back().settings.emplace_back(axis->field, value);
      }
    }
    points = std::move(longer);
    axes.push_back(*std::move(axis));
  }
  for (const Axis& axis : axes) {
    std::vector<std::string> sorted = axis.values;
    std::sort(sorted.begin(), sorted.end());
    const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
    if (twice != sorted.end()) return Refuse(absl::StrCat(axis.field, "=", *twice), "each value once");
  }
  SetNames(axes, points);
  return points;
}

}  // namespace ballast
