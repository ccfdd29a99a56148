// SPDX-License-Identifier: Apache-2.0
#include "common/text/nearest_name.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace ballast {
namespace {

size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t above = row[j + 1];
      row[j + 1] = std::min({above + 1, row[j] + 1, diagonal + (a[i] == b[j] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

}  // namespace

NearestName FindNearestName(absl::string_view got, absl::Span<const std::string> names) {
  NearestName nearest;
  for (const std::string& name : names) {
    const size_t distance = EditDistance(got.substr(0, 64), name);
    if (nearest.name == nullptr || distance < nearest.distance) nearest = {&name, distance};
  }
  return nearest;
}

}  // namespace ballast
